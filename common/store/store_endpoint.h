#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp::store {

struct StoreEndpoint {
  std::string host;
  int port = 0;
};

// HOST:PORT, with brackets around an IPv6 address. HOST alone if there is a `default_port`.
// kInvalidArgument says what is wrong and what would be right.
Result<StoreEndpoint> parse_store_endpoint(std::string_view text,
                                           std::optional<int> default_port = {});

}  // namespace ddp::store
