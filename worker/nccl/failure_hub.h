#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/nccl/abort_relay.h"
#include "worker/transport/failure.h"

namespace ddp::nccl {

class NcclEngine;

// Makes the groups of one round in this process fail together. Thread safe.
class FailureHub {
 public:
  explicit FailureHub(std::function<void(const Failure&)> on_abort)
      : on_abort_(std::move(on_abort)) {}

  // From now on, failures are reported to other processes, too. Call it at most once.
  void set_relay(std::unique_ptr<AbortRelay> relay);
  void add(const std::shared_ptr<NcclEngine>& engine);
  // One group has failed: fails the others and, the first time, calls on_abort.
  void failed(const Failure& failure);
  // Another process has failed: fails all groups without reporting it.
  void fail_all(const Failure& failure);

 private:
  const std::function<void(const Failure&)> on_abort_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclEngine>> engines_;
  bool told_ = false;
  std::unique_ptr<AbortRelay> relay_;  // Last: its thread uses the rest. Set once, then kept.
};

}  // namespace ddp::nccl
