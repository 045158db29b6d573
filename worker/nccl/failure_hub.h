#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/nccl/abort_relay.h"
#include "worker/transport/failure.h"

namespace ddp {

class NcclEngine;

// The groups of one round and process, which fail together. Thread safe.
class FailureHub {
 public:
  explicit FailureHub(std::function<void(const Failure&)> on_abort)
      : on_abort_(std::move(on_abort)) {}

  // From now on failures are told to other processes, too. At most once.
  void set_relay(std::unique_ptr<AbortRelay> relay);
  void add(const std::shared_ptr<NcclEngine>& engine);
  // One group has failed: so do the others, and the owner is told, the first time.
  void failed(const Failure& failure);
  // Somebody else has failed: all groups do, and nobody is told.
  void fail_all(const Failure& failure);

 private:
  const std::function<void(const Failure&)> on_abort_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclEngine>> engines_;
  bool told_ = false;
  std::unique_ptr<AbortRelay> relay_;  // Last: its thread uses the rest. Set once, then kept.
};

}  // namespace ddp
