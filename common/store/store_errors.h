#pragma once

#include <chrono>
#include <string_view>

#include "common/base/result.h"

namespace ddp::store {

// What a wait that timed out says in all stores. `store` names the store: "store 10.0.0.1:29400";
// `names`: the missing keys in quotes.
Error missing_keys(std::string_view store, std::string_view names,
                   std::chrono::milliseconds timeout);

// What a wait says that a WaitInterrupt has ended.
Error given_up(std::string_view store);

}  // namespace ddp::store
