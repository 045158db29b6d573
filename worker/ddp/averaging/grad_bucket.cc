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
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < contents_.gradients.size(); ++i) {
    const at::Tensor& like = contents_.parameters[i];
    contents_.gradients[i] = slot_of(buffer, offset, like);
    offset += like.numel();
  }
}

}  // namespace ddp
