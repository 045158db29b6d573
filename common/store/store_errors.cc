#include "common/store/store_errors.h"

namespace ddp::store {

Error missing_keys(std::string_view store, std::string_view names,
                   std::chrono::milliseconds timeout) {
  return make_error(Errc::kTimeout, "{}: not there after {} ms: {}", store, timeout.count(), names);
}

Error given_up(std::string_view store) {
  return make_error(Errc::kAborted, "{}: the wait for a key was given up", store);
}

}  // namespace ddp::store
