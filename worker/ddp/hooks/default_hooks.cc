#include "worker/ddp/hooks/default_hooks.h"

#include <fmt/format.h>

#include "worker/ddp/hooks/bucket_text.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// What an operation on the bucket in `type` is called.
const SharedText& label_of(GradBucket& bucket, at::ScalarType type) {
  SharedText& label = bucket.label(type);
  if (!label.empty()) return label;
  const bool is_own =
      bucket.parameters().empty() || bucket.parameters().front().scalar_type() == type;
  label =
      is_own ? bucket_text(bucket) : fmt::format("{} as {}", bucket_text(bucket), type_name(type));
  return label;
}

Future compress_hook(ProcessGroup& group, GradBucket& bucket, at::ScalarType type) {
  const at::Tensor buffer = bucket.buffer();
  if (buffer.scalar_type() == type) return allreduce_hook(group, bucket);
  at::Tensor& compressed = bucket.scratch(type);
  if (!compressed.defined() || compressed.numel() != buffer.numel()) {
    compressed = registered_zeros(group, buffer.numel(), type);
  }
  copy_values(compressed, buffer);
  WorkPtr work =
      group.all_reduce(buffer_of(compressed), ReduceOp::kAvg, {{}, label_of(bucket, type)});
  return Future(std::move(work), compressed).then([buffer = buffer](const at::Tensor& averaged) {
    copy_values(buffer, averaged);
    return buffer;
  });
}

}  // namespace

Future allreduce_hook(ProcessGroup& process_group, GradBucket& bucket) {
  const at::Tensor& buffer = bucket.buffer();
  return Future(process_group.all_reduce(buffer_of(buffer), ReduceOp::kAvg,
                                         {{}, label_of(bucket, buffer.scalar_type())}),
                buffer);
}

Future fp16_compress_hook(ProcessGroup& process_group, GradBucket& bucket) {
  return compress_hook(process_group, bucket, at::kHalf);
}

Future bf16_compress_hook(ProcessGroup& process_group, GradBucket& bucket) {
  return compress_hook(process_group, bucket, at::kBFloat16);
}

Future noop_hook(ProcessGroup& /*process_group*/, GradBucket& bucket) {
  return Future(bucket.buffer());
}

}  // namespace ddp
