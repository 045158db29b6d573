#pragma once

#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "worker/python/native/device_groups.h"
#include "worker/python/native/operands.h"

namespace ddp::python {

// PyTorch's Work for one call with tensors on a CUDA device, with the meaning that it has for the
// backend "nccl": wait() orders the caller's stream behind the result, and the host goes on. The
// future is done as soon as the call returns; a stream that waits for it waits for the result.
// Any thread.
//
// It keeps the tensors alive until the device is done with them, if each operation's
// OpOptions::on_done holds a reference to it.
class DeviceBackendWork final : public c10d::Work {
 public:
  DeviceBackendWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                    std::vector<Operands> operands, std::vector<std::vector<at::Tensor>> value,
                    c10::Device device);

  // What the call has issued on the group, in order. Call it once, before anybody else has the
  // Work. Throws CollectiveError.
  void issued(DeviceGroup& group, std::vector<WorkPtr> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  // timeout: if given, the host waits for the device, at most for so long.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const std::uint64_t sequence_;
  const std::vector<Operands> operands_;
  const std::vector<std::vector<at::Tensor>> value_;
  const c10::Device device_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<WorkPtr> works_;
  std::optional<c10::Event> landed_;  // The results are where they belong.
};

}  // namespace ddp::python
