#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/comm_hook.h"

// Wrappers that run another hook on a half-precision copy of the bucket and give its result back in
// the bucket's own type and buffer. The wrapped hook sees the copy as GradBucket::buffer().
// fp16_compress_wrapper(allreduce_hook) is fp16_compress_hook.
namespace ddp {

class CompressWrapper {
 public:
  CompressWrapper(GradBucket& bucket, at::ScalarType type);
  // The bucket's own buffer with the inner future's value, and the bucket as it was.
  Future restore(Future inner) &&;

 private:
  GradBucket* bucket_;
  at::Tensor buffer_;
};

// For hooks that are functions: `register_comm_hook(state, fp16_compress_wrapper(powerSGD_hook))`.
template <typename State>
auto fp16_compress_wrapper(Future (*hook)(State&, GradBucket&)) {
  return [hook](State& state, GradBucket& bucket) {
    CompressWrapper wrapper(bucket, at::kHalf);
    return std::move(wrapper).restore(hook(state, bucket));
  };
}
template <typename State>
auto bf16_compress_wrapper(Future (*hook)(State&, GradBucket&)) {
  return [hook](State& state, GradBucket& bucket) {
    CompressWrapper wrapper(bucket, at::kBFloat16);
    return std::move(wrapper).restore(hook(state, bucket));
  };
}

// For hooks that are objects. The wrapper's name is "fp16+" and the hook's; its state is the
// hook's.
std::shared_ptr<CommHook> fp16_compress_wrapper(std::shared_ptr<CommHook> hook);
std::shared_ptr<CommHook> bf16_compress_wrapper(std::shared_ptr<CommHook> hook);

}  // namespace ddp
