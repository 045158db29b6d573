#pragma once

#include <stdexcept>
#include <string>

namespace ddp::train {

// Training cannot go on, for a reason that is not a fault of ours: the program prints the text and
// ends with the exit status, which is one of common/base/exit_codes.h.
class Failure : public std::runtime_error {
 public:
  Failure(int status, const std::string& text) : std::runtime_error(text), exit_status(status) {}
  int exit_status;
};

}  // namespace ddp::train
