#include "worker/ddp/averaging/hook_runner.h"

#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

void check_new_hook(const CommHook* hook, const CommHook* present) {
  if (hook == nullptr) throw std::invalid_argument("register_comm_hook was given no hook");
  if (present == nullptr) return;
  throw std::logic_error(fmt::format(
      "register_comm_hook can only be called once; there is {} already", present->name()));
}

void HookRunner::start(CommHook& hook, GradBucket& bucket, const std::string& tag) {
  running_.push_back({&hook, &bucket, &tag, bucket.buffer(), Future(), false});
  Running& running = running_.back();
  try {
    running.future = hook.run(bucket);
  } catch (...) {
    rethrow(running);
  }
}

void HookRunner::finish() {
  for (std::size_t left = running_.size(); left > 0;) {
    for (Running& running : running_) {
      if (running.is_done) continue;
      try {
        running.is_done = running.future.advance();
      } catch (...) {
        rethrow(running);
      }
      if (running.is_done) --left;
    }
  }
  for (Running& running : running_) land(running);
  running_.clear();
}

void HookRunner::rethrow(const Running& running) {
  try {
    throw;
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("communication hook {}, {}: {}", running.hook->name(),
                                         *running.tag, error.what()));
  }
}

void HookRunner::give_back_buffer(const Running& running) {
  if (!running.bucket->buffer().is_same(running.buffer)) {
    running.bucket->set_buffer(running.buffer);
  }
}

void HookRunner::land(Running& running) {
  const at::Tensor value = running.future.wait();
  const auto refuse = [&](const std::string& problem) {
    throw std::invalid_argument(
        fmt::format("communication hook {}, {}: {}", running.hook->name(), *running.tag, problem));
  };
  if (!value.defined()) refuse("its future has no tensor");
  if (value.numel() != running.buffer.numel() || value.layout() != at::kStrided ||
      !at::isFloatingType(value.scalar_type())) {
    refuse(fmt::format("its future has {}; it must have {} elements of a floating-point type",
                       describe(value), running.buffer.numel()));
  }
  if (value.data_ptr() != running.buffer.data_ptr() || !value.is_contiguous() ||
      value.scalar_type() != running.buffer.scalar_type()) {
    copy_values(running.buffer, value.reshape(running.buffer.sizes()));
  }
  give_back_buffer(running);
}

void HookRunner::drain() {
  for (Running& running : running_) running.future.drain();
  for (const Running& running : running_) give_back_buffer(running);
  running_.clear();
}

}  // namespace ddp
