#include "common/store/store_errors.h"

namespace ddp::store_errors {

Error missing(std::string_view store, std::string_view names, std::chrono::milliseconds timeout) {
  return make_error(Errc::kTimeout, "{}: not there after {} ms: {}", store, timeout.count(), names);
}

Error empty_queue(std::string_view store, std::string_view key, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    return make_error(Errc::kNotFound, "{}: queue '{}' is empty", store, key);
  return make_error(Errc::kTimeout, "{}: nothing came into queue '{}' within {} ms", store, key,
                    timeout.count());
}

Error incomplete_barrier(std::string_view store, std::string_view key, std::int64_t came,
                         int world_size, std::chrono::milliseconds timeout) {
  return make_error(Errc::kTimeout, "{}: barrier '{}': {} of {} came within {} ms", store, key,
                    came, world_size, timeout.count());
}

Result<void> check_world_size(std::string_view key, int world_size) {
  if (world_size >= 1) return {};
  return make_error(Errc::kInvalidArgument, "barrier '{}' of {}: expected at least 1", key,
                    world_size);
}

Result<void> check_pairs(std::size_t keys, std::size_t values) {
  if (keys == values) return {};
  return make_error(Errc::kInvalidArgument, "multi_set of {} keys with {} values", keys, values);
}

}  // namespace ddp::store_errors
