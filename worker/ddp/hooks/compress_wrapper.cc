#include "worker/ddp/hooks/compress_wrapper.h"

#include <utility>

#include <ATen/ATen.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

class WrappedHook final : public CommHook {
 public:
  WrappedHook(std::shared_ptr<CommHook> hook, at::ScalarType type)
      : hook_(std::move(hook)), type_(type) {}

  std::string name() const override {
    return (type_ == at::kHalf ? "fp16+" : "bf16+") + hook_->name();
  }
  Future run(GradBucket& bucket) override {
    CompressWrapper wrapper(bucket, type_);
    return std::move(wrapper).restore(hook_->run(bucket));
  }
  CommHookState state() const override { return hook_->state(); }
  void restore(const CommHookState& state) override { hook_->restore(state); }

 private:
  std::shared_ptr<CommHook> hook_;
  at::ScalarType type_;
};

}  // namespace

CompressWrapper::CompressWrapper(GradBucket& bucket, at::ScalarType type)
    : bucket_(&bucket), buffer_(bucket.buffer()) {
  if (buffer_.scalar_type() == type) return;
  at::Tensor& compressed = bucket.scratch(type);
  if (!compressed.defined() || compressed.numel() != buffer_.numel()) {
    compressed = at::empty({buffer_.numel()}, buffer_.options().dtype(type));
  }
  copy_values(compressed, buffer_);
  bucket.set_buffer(compressed);
}

Future CompressWrapper::restore(Future inner) && {
  return std::move(inner).then(
      [bucket = bucket_, buffer = std::move(buffer_)](const at::Tensor& result) {
        if (!is_same_memory(result, buffer)) copy_values(buffer, result.view_as(buffer));
        if (!is_same_memory(bucket->buffer(), buffer)) bucket->set_buffer(buffer);
        return buffer;
      });
}

std::shared_ptr<CommHook> fp16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<WrappedHook>(std::move(hook), at::kHalf);
}

std::shared_ptr<CommHook> bf16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<WrappedHook>(std::move(hook), at::kBFloat16);
}

}  // namespace ddp
