#include "worker/ddp/bucket_reductions.h"

#include <utility>

#include <ATen/ATen.h>

#include "worker/ddp/bucket_buffers.h"
#include "worker/ddp/tensors.h"

namespace ddp {

BucketReductions::BucketReductions(std::shared_ptr<ProcessGroup> group, GradientSlots& slots,
                                   std::optional<at::ScalarType> element_type)
    : group_(std::move(group)), slots_(slots), element_type_(element_type) {}

void BucketReductions::build(Plan plan, bool with_memory) {
  // The old memory goes first, so that the group has room for the new.
  if (has_memory_) slots_.vacate();
  buckets_.clear();
  ordinary_.clear();
  plain_.clear();
  layouts_ = std::move(plan.layouts);
  buckets_.resize(layouts_.size());
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    buckets_[index].kind = plan.kinds[index];
    buckets_[index].tag = bucket_tag(index, layouts_, slots_.named());
  }
  has_memory_ = with_memory;
  if (with_memory) allocate();
}

void BucketReductions::allocate() {
  std::vector<BucketLayout> of_kind[2];
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.kind == Kind::kSparse) {
      bucket.sparse = std::make_unique<SparseReduction>(
          group_, slots_.parameter(layouts_[index].slots.front().parameter), bucket.tag);
    } else {
      of_kind[bucket.kind == Kind::kPlain ? 1 : 0].push_back(layouts_[index]);
    }
  }
  ordinary_ = make_grad_buckets(of_kind[0], slots_.named(), *group_, element_type_);
  plain_ = make_grad_buckets(of_kind[1], slots_.named(), *group_, element_type_);
  std::size_t next[2] = {0, 0};
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.kind == Kind::kSparse) continue;
    bucket.memory = bucket.kind == Kind::kPlain ? &plain_[next[1]++] : &ordinary_[next[0]++];
    const std::vector<BucketSlot>& slots = layouts_[index].slots;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      slots_.place(slots[slot].parameter, bucket.memory->gradients()[slot]);
    }
  }
}

void BucketReductions::launch(std::size_t index, ReduceOp op, const at::Tensor& gradient) {
  Bucket& bucket = buckets_[index];
  bucket.is_launched = true;
  if (bucket.sparse) {
    bucket.sparse->start(gradient);
  } else if (is_hooked(bucket)) {
    runner_.start(*hook_, *bucket.memory, bucket.tag.str());
  } else if (bucket.memory->buffer().numel() != 0) {
    bucket.work = group_->all_reduce(buffer_of(bucket.memory->buffer()), op, {{}, bucket.tag});
  }
}

bool BucketReductions::is_done(std::size_t index) const {
  const Bucket& bucket = buckets_[index];
  return bucket.is_launched && !bucket.sparse && !is_hooked(bucket) &&
         (!bucket.work || bucket.work->done());
}

void BucketReductions::finish_stages() {
  if (hook_) runner_.finish();
  for (Bucket& bucket : buckets_) {
    if (bucket.sparse && bucket.is_launched) bucket.sparse->gather();
  }
}

at::Tensor BucketReductions::wait(std::size_t index, double scale) {
  Bucket& bucket = buckets_[index];
  bucket.is_launched = false;
  if (bucket.sparse) return bucket.sparse->finish(scale);
  if (const WorkPtr work = std::exchange(bucket.work, nullptr)) work->wait();
  if (scale != 1 && !is_hooked(bucket)) {
    const at::NoGradGuard no_grad;
    bucket.memory->buffer().mul_(scale);
  }
  return {};
}

void BucketReductions::drain() {
  runner_.drain();
  for (Bucket& bucket : buckets_) {
    bucket.is_launched = false;
    wait_quietly(bucket.work);
    if (bucket.sparse) bucket.sparse->drain();
  }
}

}  // namespace ddp
