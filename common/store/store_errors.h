#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "common/base/result.h"

// Error messages that all stores share. `store` names the store: "store 10.0.0.1:29400".
namespace ddp::store_errors {

// `names`: the missing keys in quotes.
Error missing(std::string_view store, std::string_view names, std::chrono::milliseconds timeout);
// kNotFound if the caller did not want to wait.
Error empty_queue(std::string_view store, std::string_view key, std::chrono::milliseconds timeout);
Error incomplete_barrier(std::string_view store, std::string_view key, std::int64_t came,
                         int world_size, std::chrono::milliseconds timeout);

// Checks of arguments.
Result<void> check_world_size(std::string_view key, int world_size);
Result<void> check_pairs(std::size_t keys, std::size_t values);

}  // namespace ddp::store_errors
