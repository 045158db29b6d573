#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "worker/nccl/device_operation.h"
#include "worker/nccl/nccl_work.h"
#include "worker/transport/failure.h"

namespace ddp::nccl {

class NcclEngine;

// An operation that an NcclEngine was given.
class DeviceWork final : public NcclWork {
 public:
  DeviceWork(std::weak_ptr<NcclEngine> engine, DeviceOperation operation,
             std::function<void(std::exception_ptr)> on_done)
      : engine_(std::move(engine)),
        operation_(std::move(operation)),
        on_done_(std::move(on_done)) {}

  bool done() const override { return state_.load(std::memory_order_acquire) != kPending; }
  void wait() override;
  void wait_stream(cuda::Stream stream) override;

  const DeviceOperation& operation() const { return operation_; }
  // "all_reduce #17 (bucket 3)"
  std::string name() const { return operation_.name(); }

 private:
  friend class NcclEngine;
  enum State : int { kPending, kSucceeded, kFailed };

  void fail(const Failure& failure);
  void throw_if_failed() const;
  // Calls OpOptions::on_done. Once, without locks, by the thread that has set state_.
  void tell();

  const std::weak_ptr<NcclEngine> engine_;
  const DeviceOperation operation_;
  std::function<void(std::exception_ptr)> on_done_;
  Failure failure_;                    // Written before state_ becomes kFailed.
  cuda::Event completed_ = nullptr;    // Written before enqueued_ becomes true.
  std::atomic<bool> enqueued_{false};  // The kernel and, behind it, completed_ are in the stream.
  std::atomic<int> state_{kPending};
};

}  // namespace ddp::nccl
