#include "worker/ddp/averaging/bucket_reductions.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

BucketReductions::BucketReductions(std::shared_ptr<ProcessGroup> group,
                                   std::vector<DeviceGroup> device_groups, GradientSlots& slots,
                                   std::optional<at::ScalarType> element_type,
                                   std::optional<PieceLimits> piece_limits)
    : group_(std::move(group)),
      device_groups_(std::move(device_groups)),
      slots_(slots),
      element_type_(element_type),
      piece_limits_(piece_limits) {}

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
  }
  cut();
  has_memory_ = with_memory;
  if (with_memory) allocate();
}

void BucketReductions::cut() {
  std::vector<bool> is_whole;
  for (const Bucket& bucket : buckets_) {
    is_whole.push_back(!piece_limits_ || bucket.kind == Kind::kSparse || is_hooked(bucket));
  }
  pieces_ = cut_into_pieces(layouts_, is_whole, piece_limits_.value_or(PieceLimits{}));
  reductions_.clear();
  reductions_.resize(pieces_.size());
  for (Bucket& bucket : buckets_) bucket.pieces = 0;
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    Bucket& bucket = buckets_[pieces_[index].bucket];
    if (bucket.pieces++ == 0) bucket.first_piece = index;
  }
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    const Bucket& bucket = buckets_[pieces_[index].bucket];
    reductions_[index].tag = piece_tag(pieces_[index], index - bucket.first_piece, bucket.pieces,
                                       layouts_, slots_.named());
  }
}

void BucketReductions::set_hook(std::shared_ptr<CommHook> hook) {
  hook_ = std::move(hook);
  cut();
}

void BucketReductions::allocate() {
  std::vector<BucketLayout> of_kind[2];
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.kind == Kind::kSparse) {
      bucket.sparse = std::make_unique<SparseReduction>(
          group_, slots_.parameter(layouts_[index].slots.front().parameter),
          reductions_[bucket.first_piece].tag);
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
    bucket.route.emplace(*bucket.memory, *group_, device_groups_);
    const std::vector<BucketSlot>& slots = layouts_[index].slots;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      slots_.place(slots[slot].parameter, bucket.memory->gradients()[slot]);
    }
  }
}

void BucketReductions::launch(std::size_t index, ReduceOp op, const at::Tensor& gradient) {
  const BucketPiece& piece = pieces_[index];
  Bucket& bucket = buckets_[piece.bucket];
  Reduction& reduction = reductions_[index];
  reduction.is_launched = true;
  if (bucket.sparse) {
    bucket.sparse->start(gradient);
  } else if (is_hooked(bucket)) {
    runner_.start(*hook_, bucket.route->on_host(), reduction.tag.str());
  } else if (piece.bytes != 0) {
    reduction.work =
        bucket.route->all_reduce(piece.offset_bytes, piece.bytes, op, {{}, reduction.tag});
  }
}

bool BucketReductions::is_done(std::size_t index) const {
  const Bucket& bucket = buckets_[pieces_[index].bucket];
  const Reduction& reduction = reductions_[index];
  return reduction.is_launched && !bucket.sparse && !is_hooked(bucket) &&
         (!reduction.work || reduction.work->done());
}

void BucketReductions::finish_stages() {
  if (hook_) runner_.finish();
  for (Bucket& bucket : buckets_) {
    if (bucket.sparse && reductions_[bucket.first_piece].is_launched) bucket.sparse->gather();
  }
}

at::Tensor BucketReductions::wait(std::size_t index, double scale) {
  Bucket& bucket = buckets_[index];
  for (std::size_t piece = 0; piece < bucket.pieces; ++piece) {
    Reduction& reduction = reductions_[bucket.first_piece + piece];
    reduction.is_launched = false;
    if (const WorkPtr work = std::exchange(reduction.work, nullptr)) work->wait();
  }
  if (bucket.sparse) return bucket.sparse->finish(scale);
  bucket.route->land();
  if (scale != 1 && !is_hooked(bucket)) {
    const at::NoGradGuard no_grad;
    bucket.memory->buffer().mul_(scale);
  }
  return {};
}

void BucketReductions::drain() {
  runner_.drain();
  for (Reduction& reduction : reductions_) {
    reduction.is_launched = false;
    wait_quietly(reduction.work);
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.sparse) bucket.sparse->drain();
  }
}

}  // namespace ddp
