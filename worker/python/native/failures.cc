#include "worker/python/native/failures.h"

#include <string>

namespace ddp::python {

std::exception_ptr as_backend_error(const CollectiveError& error) {
  const std::string text = error.what();
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace ddp::python
