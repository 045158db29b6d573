#include "worker/ddp/averaging/future.h"

#include <utility>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

Future::Future(WorkPtr work, at::Tensor value) : work_(std::move(work)), value_(std::move(value)) {
  if (work_) work_->start();
}

Future Future::then_future(Continuation next) && {
  next_.insert(next_.begin(), std::move(next));
  return std::move(*this);
}

bool Future::advance() {
  if (work_) {
    const WorkPtr work = std::exchange(work_, nullptr);
    work->wait();
  }
  if (next_.empty()) return true;
  Continuation next = std::move(next_.back());
  next_.pop_back();
  Future following = next(std::move(value_));
  work_ = std::move(following.work_);
  value_ = std::move(following.value_);
  for (Continuation& each : following.next_) next_.push_back(std::move(each));
  return !work_ && next_.empty();
}

at::Tensor Future::wait() {
  while (!advance()) {
  }
  return value_;
}

void Future::drain() {
  wait_quietly(work_);
  next_.clear();
}

}  // namespace ddp
