#include "worker/nccl/failure_hub.h"

#include <utility>

#include "worker/nccl/nccl_engine.h"

namespace ddp::nccl {

void FailureHub::set_relay(std::unique_ptr<AbortRelay> relay) {
  const std::lock_guard lock(mutex_);
  relay_ = std::move(relay);
}

void FailureHub::add(const std::shared_ptr<NcclEngine>& engine) {
  const std::lock_guard lock(mutex_);
  std::erase_if(engines_, [](const auto& each) { return each.expired(); });
  engines_.push_back(engine);
}

void FailureHub::failed(const Failure& failure) {
  fail_all(failure);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(told_, true)) return;
    if (relay_) relay_->tell(failure);
  }
  if (on_abort_) on_abort_(failure);
}

void FailureHub::fail_all(const Failure& failure) {
  std::vector<std::shared_ptr<NcclEngine>> engines;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : engines_) {
      if (auto engine = each.lock()) engines.push_back(std::move(engine));
    }
  }
  for (const auto& engine : engines) engine->fail(failure, NcclEngine::Tell::kNo);
}

}  // namespace ddp::nccl
