#pragma once

#include <string>
#include <vector>

namespace ddp::check {

// What the name service says. The system limits how long that takes, not we.
struct Lookup {
  std::vector<std::string> addresses;  // Numeric, each once.
  std::string error;                   // Empty if there are addresses.
  double ms = 0;                       // How long it took.
};
Lookup look_up(const std::string& host);

// The name of a numeric address; empty if it has none.
std::string name_of_address(const std::string& address);

}  // namespace ddp::check
