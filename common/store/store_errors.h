#pragma once

#include <chrono>
#include <string_view>

#include "common/base/result.h"

// Error messages that all stores share. `store` names the store: "store 10.0.0.1:29400".
namespace ddp::store_errors {

// `names`: the missing keys in quotes.
Error missing(std::string_view store, std::string_view names, std::chrono::milliseconds timeout);

}  // namespace ddp::store_errors
