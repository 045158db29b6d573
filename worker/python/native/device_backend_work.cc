#include "worker/python/native/device_backend_work.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "worker/python/native/cuda_streams.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/work_value.h"

namespace ddp::python {
namespace {

std::vector<at::Tensor> used_by(const std::vector<Operands>& operands) {
  std::vector<at::Tensor> tensors;
  for (const Operands& each : operands) {
    tensors.insert(tensors.end(), each.used().begin(), each.used().end());
  }
  return tensors;
}

}  // namespace

DeviceBackendWork::DeviceBackendWork(int rank, c10d::OpType type, const char* title,
                                     std::uint64_t sequence, std::vector<Operands> operands,
                                     std::vector<std::vector<at::Tensor>> value, c10::Device device)
    : Work(rank, type, title, used_by(operands)),
      sequence_(sequence),
      operands_(std::move(operands)),
      value_(std::move(value)),
      device_(device),
      future_(c10::make_intrusive<c10::ivalue::Future>(type_of_value(value_),
                                                       std::vector<c10::Device>{device})) {}

void DeviceBackendWork::issued(DeviceGroup& group, std::vector<WorkPtr> works) {
  works_ = std::move(works);
  // What follows belongs behind the operations, which ddp-nccl puts into the stream.
  for (const WorkPtr& work : works_) {
    dynamic_cast<NcclWork&>(*work).wait_stream(group.group().stream());
  }
  if (!works_.empty()) group.issued(works_.back());
  const c10::StreamGuard guard(group.stream());
  for (const Operands& operands : operands_) operands.land();
  landed_.emplace(device_.type());
  landed_->record(group.stream());
  future_->markCompleted(as_value(value_));
}

bool DeviceBackendWork::isCompleted() { return all_done(works_); }

bool DeviceBackendWork::isSuccess() const { return all_done(works_) && !exception(); }

std::exception_ptr DeviceBackendWork::exception() const { return first_failure(works_); }

std::vector<at::Tensor> DeviceBackendWork::result() { return as_result(value_); }

bool DeviceBackendWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil without_gil;
  if (timeout != kNoTimeout && !wait_until_done(works_, timeout)) {
    TORCH_CHECK_WITH(DistBackendError, false, "the operation is not done after ", timeout.count(),
                     " ms");
  }
  if (const auto failure = exception()) std::rethrow_exception(failure);
  landed_->block(current_stream(device_));
  return true;
}

}  // namespace ddp::python
