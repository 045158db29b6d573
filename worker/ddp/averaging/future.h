#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "common/base/inline_function.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// A tensor that is computed later: the result of a group's operations and of the computations
// between them. It is PyTorch's torch.futures.Future for communication hooks, with one difference.
// A continuation that is given to then() does not run as soon as it could, because that moment
// differs between ranks. It runs when somebody waits for the future. For a hook, the reducer waits
// on the training thread at the end of backward: stage by stage, and within a stage bucket by
// bucket. So a continuation may issue operations, and all ranks issue them in the same order.
//
// Movable, not copyable. Used by one thread at a time. The destructor does not wait; the caller
// must keep the buffers of running operations alive, except for the tensors that the future holds.
// A future with up to two continuations that capture few variables (InlineFunction) allocates
// nothing.
class Future {
 public:
  Future() = default;
  // Ready at once.
  explicit Future(at::Tensor value) : value_(std::move(value)) {}
  // Ready when the operation is done, which begins at once. `work` may be null.
  Future(WorkPtr work, at::Tensor value);
  Future(Future&&) = default;
  Future& operator=(Future&&) = default;

  // A future for the result of `next`, which is called with this future's value and returns a
  // tensor or another future. It is called at most once.
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

  // Waits for the running operation and starts the next stage, if there is one. Returns whether the
  // value is ready. Throws CollectiveError, or what a continuation throws.
  bool advance();
  // Runs all stages and returns the value.
  at::Tensor wait();

  // Waits until no operation uses memory of this future any more, even if it failed. Does not run
  // continuations.
  void drain();

 private:
  using Continuation = InlineFunction<Future(at::Tensor)>;
  Future then_future(Continuation next) &&;

  WorkPtr work_;
  at::Tensor value_;
  c10::SmallVector<Continuation, 2> next_;  // The last one runs first.
};

}  // namespace ddp
