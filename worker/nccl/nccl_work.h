#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "worker/nccl/device_operation.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp {

class NcclEngine;

// The Work of an NcclGroup; what a method of the group returns can be cast to it.
class NcclWork final : public Work {
 public:
  NcclWork(std::weak_ptr<NcclEngine> engine, DeviceOperation operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}

  // Any thread. done() learns of completion when the watchdog (every 5 ms) or a wait() looks.
  bool done() const override { return state_.load(std::memory_order_acquire) != kPending; }
  // Waits on the host until the device has finished the operation.
  void wait() override;
  // Orders the stream behind the operation: work put into the stream afterwards sees the result.
  // The host waits only until the operation is in the group's own stream. Throws CollectiveError if
  // it has failed by then. After a later failure the stream goes on with undefined contents, so
  // call wait() before you trust the result.
  void wait_stream(cuda::Stream stream);

  const DeviceOperation& operation() const { return operation_; }
  // "all_reduce #17 (bucket 3)"
  std::string name() const { return operation_.name(); }

 private:
  friend class NcclEngine;
  enum State : int { kPending, kSucceeded, kFailed };

  void fail(const Failure& failure);
  void throw_if_failed() const;

  const std::weak_ptr<NcclEngine> engine_;
  const DeviceOperation operation_;
  Failure failure_;                    // Written before state_ becomes kFailed.
  cuda::Event completed_ = nullptr;    // Written before enqueued_ becomes true.
  std::atomic<bool> enqueued_{false};  // The kernel and, behind it, completed_ are in the stream.
  std::atomic<int> state_{kPending};
};

}  // namespace ddp
