#pragma once

#include <deque>
#include <functional>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

namespace ddp {

// A tensor that will be there: the result of operations of a group and of what is computed between
// them. PyTorch's torch.futures.Future for communication hooks, with one difference: what is given
// to then() does not run as soon as it could, which would be at another time on every rank, but
// when somebody waits. For a hook that is the reducer, on the training thread at the end of
// backward: stage by stage, and within a stage bucket by bucket. So a continuation may issue
// operations, and all ranks issue them in the same order.
//
// Movable, not copyable. Used by one thread at a time. Destruction waits for nothing; buffers of
// running operations are the caller's business, except for the tensors that the future holds.
class Future {
 public:
  Future() = default;
  // Is there already.
  explicit Future(at::Tensor value) : value_(std::move(value)) {}
  // Is there when the operation is done. `work` may be null.
  Future(WorkPtr work, at::Tensor value) : work_(std::move(work)), value_(std::move(value)) {}
  Future(Future&&) = default;
  Future& operator=(Future&&) = default;

  using Continuation = std::function<Future(at::Tensor)>;
  // The future of what `next` makes of this one's value: of the tensor that it returns, or of the
  // future.
  Future then(Continuation next) &&;
  Future then(std::function<at::Tensor(at::Tensor)> next) &&;

  // Waits for the operation that is under way and starts what comes next, if anything does. Gives
  // whether the value is there. Throws CollectiveError, or what a continuation throws.
  bool advance();
  // All stages.
  at::Tensor wait();

  // Waits until no operation uses memory of this future any more, whatever became of it.
  // Continuations do not run.
  void drain();

 private:
  WorkPtr work_;
  at::Tensor value_;
  std::deque<Continuation> next_;
};

}  // namespace ddp
