#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "common/base/inline_function.h"
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
// running operations are the caller's business, except for the tensors that the future holds. A
// future of two continuations with few captured variables (InlineFunction) allocates nothing.
class Future {
 public:
  Future() = default;
  // Is there already.
  explicit Future(at::Tensor value) : value_(std::move(value)) {}
  // Is there when the operation is done. `work` may be null.
  Future(WorkPtr work, at::Tensor value) : work_(std::move(work)), value_(std::move(value)) {}
  Future(Future&&) = default;
  Future& operator=(Future&&) = default;

  // The future of what `next` makes of this one's value: of the tensor that it returns, or of the
  // future. It is called once, or never.
  template <std::invocable<at::Tensor> Function>
  Future then(Function next) && {
    using Result = std::invoke_result_t<Function&, at::Tensor>;
    if constexpr (std::is_convertible_v<Result, at::Tensor>) {
      return std::move(*this).then_future([next = std::move(next)](at::Tensor value) mutable {
        return Future(next(std::move(value)));
      });
    } else {
      return std::move(*this).then_future(std::move(next));
    }
  }

  // Waits for the operation that is under way and starts what comes next, if anything does. Gives
  // whether the value is there. Throws CollectiveError, or what a continuation throws.
  bool advance();
  // All stages.
  at::Tensor wait();

  // Waits until no operation uses memory of this future any more, whatever became of it.
  // Continuations do not run.
  void drain();

 private:
  using Continuation = InlineFunction<Future(at::Tensor)>;
  Future then_future(Continuation next) &&;

  WorkPtr work_;
  at::Tensor value_;
  c10::SmallVector<Continuation, 2> next_;  // The last one runs first.
};

}  // namespace ddp
