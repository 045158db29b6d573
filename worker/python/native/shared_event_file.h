#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

#include "worker/tensorboard/event_file.h"

namespace ddp::python {

// An EventFile for any thread: a program's own curves, and what a Checkpointer tells.
class SharedEventFile {
 public:
  explicit SharedEventFile(tensorboard::EventFile file) : file_(std::move(file)) {}

  Result<void> add(std::int64_t step, std::span<const tensorboard::Scalar> scalars) {
    const std::lock_guard lock(mutex_);
    return file_.add(step, scalars);
  }
  Result<void> add_late(std::int64_t step, const tensorboard::Scalar& scalar) {
    const std::lock_guard lock(mutex_);
    return file_.add_late(step, scalar);
  }

 private:
  std::mutex mutex_;
  tensorboard::EventFile file_;
};

}  // namespace ddp::python
