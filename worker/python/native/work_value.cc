#include "worker/python/native/work_value.h"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>

#include "common/base/clock.h"
#include "worker/python/native/failures.h"

namespace ddp::python {

c10::TypePtr type_of_value(const TensorLists& value) {
  const auto tensors = c10::ListType::create(c10::TensorType::get());
  if (value.size() > 1) return c10::ListType::create(tensors);
  return tensors;
}

c10::IValue as_value(const TensorLists& value) {
  if (value.size() > 1) return c10::IValue(value);
  return c10::IValue(value.empty() ? std::vector<at::Tensor>{} : value.front());
}

std::vector<at::Tensor> as_result(const TensorLists& value) {
  TORCH_CHECK(value.size() <= 1, "the operation has a list of lists; use get_future()");
  return value.empty() ? std::vector<at::Tensor>{} : value.front();
}

bool all_done(const std::vector<WorkPtr>& works) {
  return std::all_of(works.begin(), works.end(), [](const WorkPtr& work) { return work->done(); });
}

bool wait_until_done(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout) {
  const TimePoint limit = Clock::now() + timeout;
  while (!all_done(works)) {
    if (Clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::exception_ptr first_failure(const std::vector<WorkPtr>& works) {
  for (const WorkPtr& work : works) {
    if (!work->done()) continue;
    try {
      work->wait();
    } catch (const CollectiveError& error) {
      return as_backend_error(error);
    }
  }
  return nullptr;
}

}  // namespace ddp::python
