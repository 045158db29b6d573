#pragma once

#include <chrono>
#include <exception>
#include <vector>

#include <ATen/core/ivalue.h>

#include "worker/runtime/process_group.h"

// What PyTorch's Work for host memory and the one for devices have in common: the tensors that a
// call gives, [[tensor, ...], ...], and the operations that it has issued.
namespace ddp::python {

using TensorLists = std::vector<std::vector<at::Tensor>>;

// As PyTorch's backends have it: a list of tensors, or of lists if there are several.
c10::TypePtr type_of_value(const TensorLists& value);
c10::IValue as_value(const TensorLists& value);
// Work::result(). Raises if there are several lists.
std::vector<at::Tensor> as_result(const TensorLists& value);

bool all_done(const std::vector<WorkPtr>& works);
// False after the timeout.
bool wait_until_done(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout);
// Of those that are done, as DistBackendError; null if none has failed.
std::exception_ptr first_failure(const std::vector<WorkPtr>& works);

}  // namespace ddp::python
