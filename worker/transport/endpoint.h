#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// Where a rank listens, as it stands in the store: "ADDRESS,ADDRESS;PORT;TOKEN". Whoever connects
// shows the token, which is random.
struct Endpoint {
  std::vector<std::string> addresses;  // Numeric, best first.
  int port = 0;
  std::uint64_t token = 0;

  std::string text() const;
};

// kProtocol quotes the text.
Result<Endpoint> parse_endpoint(const std::string& text);

std::uint64_t random_token();

}  // namespace ddp
