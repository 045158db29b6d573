#include "worker/ddp/averaging/grad_bucket.h"

#include <stdexcept>

#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

void GradBucket::set_buffer(const at::Tensor& buffer) {
  if (!buffer.defined() || buffer.dim() != 1 || !buffer.is_contiguous() ||
      buffer.numel() != contents_.buffer.numel()) {
    throw std::invalid_argument(fmt::format(
        "GradBucket::set_buffer: bucket {} has {} elements in one contiguous dimension, the new "
        "buffer is {}",
        contents_.index, contents_.buffer.numel(),
        buffer.defined() ? describe(buffer) : "undefined"));
  }
  contents_.buffer = buffer;
  contents_.gradients = slots_of(buffer, contents_.parameters);
}

}  // namespace ddp
