#include "worker/ddp/future.h"

#include <iterator>
#include <utility>

#include "worker/ddp/tensors.h"

namespace ddp {

Future Future::then(Continuation next) && {
  next_.push_back(std::move(next));
  return std::move(*this);
}

Future Future::then(std::function<at::Tensor(at::Tensor)> next) && {
  return std::move(*this).then(Continuation(
      [next = std::move(next)](at::Tensor value) { return Future(next(std::move(value))); }));
}

bool Future::advance() {
  if (work_) {
    const WorkPtr work = std::exchange(work_, nullptr);
    work->wait();
  }
  if (next_.empty()) return true;
  const Continuation next = std::move(next_.front());
  next_.pop_front();
  Future following = next(std::move(value_));
  work_ = std::move(following.work_);
  value_ = std::move(following.value_);
  next_.insert(next_.begin(), std::make_move_iterator(following.next_.begin()),
               std::make_move_iterator(following.next_.end()));
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
