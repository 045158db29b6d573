#pragma once

#include <exception>
#include <stdexcept>
#include <string_view>

#include <c10/util/Exception.h>

#include "worker/runtime/process_group.h"

namespace ddp::python {

// The same failure as torch.distributed.DistBackendError.
std::exception_ptr as_backend_error(const CollectiveError& error);
// The same for what has been caught. Of another type, it stays as it is.
std::exception_ptr as_backend_error(const std::exception_ptr& failure);

// Whether another rank has caused one of the latest failures that as_backend_error() has seen, and
// `text` holds that failure's text. Any thread.
bool is_consequence(std::string_view text);

// What `call` returns. CollectiveError becomes DistBackendError, std::invalid_argument ValueError.
template <typename Call>
auto with_torch_errors(const Call& call) {
  try {
    return call();
  } catch (const CollectiveError& error) {
    std::rethrow_exception(as_backend_error(error));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace ddp::python
