#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp::transport {

// Where a rank listens, as written to the store: "ADDRESS,ADDRESS;PORT;TOKEN". A rank that connects
// must send the token, which is random.
struct Endpoint {
  std::vector<std::string> addresses;  // Numeric, best first.
  int port = 0;
  std::uint64_t token = 0;

  std::string text() const;
};

// kProtocol for malformed text; the message quotes it.
Result<Endpoint> parse_endpoint(const std::string& text);

std::uint64_t random_token();

}  // namespace ddp::transport
