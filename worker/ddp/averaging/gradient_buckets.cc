#include "worker/ddp/averaging/gradient_buckets.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

GradientBuckets::GradientBuckets(std::vector<NamedTensor> parameters,
                                 std::shared_ptr<ProcessGroup> group, Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      slots_(std::move(parameters), options_.slots) {}

void GradientBuckets::build(Plan plan, bool with_memory) {
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

void GradientBuckets::cut() {
  std::vector<bool> is_whole;
  for (const Bucket& bucket : buckets_) {
    is_whole.push_back(!options_.pieces || bucket.kind == Kind::kSparse || is_hooked(bucket));
  }
  pieces_ = buckets::cut_into_pieces(layouts_, is_whole,
                                     options_.pieces.value_or(buckets::PieceLimits{}));
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

void GradientBuckets::set_hook(std::shared_ptr<CommHook> hook) {
  hook_ = std::move(hook);
  cut();
}

void GradientBuckets::allocate() {
  std::vector<buckets::BucketLayout> of_kind[2];
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.kind == Kind::kSparse) {
      const NamedTensor& parameter = slots_.parameter(layouts_[index].slots.front().parameter);
      bucket.sparse = std::make_unique<SparseReduction>(
          group_, parameter, options_.element_type.value_or(parameter.tensor.scalar_type()),
          reductions_[bucket.first_piece].tag);
    } else {
      of_kind[bucket.kind == Kind::kPlain ? 1 : 0].push_back(layouts_[index]);
    }
  }
  ordinary_ = make_grad_buckets(of_kind[0], slots_.named(), *group_, options_.element_type);
  plain_ = make_grad_buckets(of_kind[1], slots_.named(), *group_, options_.element_type);
  std::size_t next[2] = {0, 0};
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.kind == Kind::kSparse) continue;
    bucket.memory = bucket.kind == Kind::kPlain ? &plain_[next[1]++] : &ordinary_[next[0]++];
    bucket.route.emplace(*bucket.memory, *group_, options_.device_groups);
    const std::vector<buckets::BucketSlot>& slots = layouts_[index].slots;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      slots_.place(slots[slot].parameter, bucket.memory->gradients()[slot]);
    }
  }
}

void GradientBuckets::launch(std::size_t index, ReduceOp op, bool has_gradients) {
  const buckets::BucketPiece& piece = pieces_[index];
  Bucket& bucket = buckets_[piece.bucket];
  Reduction& reduction = reductions_[index];
  reduction.is_launched = true;
  if (bucket.sparse) {
    const std::size_t parameter = layouts_[piece.bucket].slots.front().parameter;
    bucket.sparse->start(has_gradients ? slots_.gradient(parameter) : at::Tensor());
  } else if (is_hooked(bucket)) {
    runner_.start(*hook_, bucket.route->on_host(), reduction.tag.str());
  } else if (piece.bytes != 0) {
    reduction.work =
        bucket.route->all_reduce(piece.offset_bytes, piece.bytes, op, {{}, reduction.tag});
    // Backward goes on; only after the last piece does the caller wait.
    if (reduction.work && index + 1 < pieces_.size()) reduction.work->start();
  }
}

bool GradientBuckets::is_done(std::size_t index) const {
  const Bucket& bucket = buckets_[pieces_[index].bucket];
  const Reduction& reduction = reductions_[index];
  return reduction.is_launched && !bucket.sparse && !is_hooked(bucket) &&
         (!reduction.work || reduction.work->done());
}

void GradientBuckets::finish_stages() {
  if (hook_) runner_.finish();
  for (Bucket& bucket : buckets_) {
    if (bucket.sparse && reductions_[bucket.first_piece].is_launched) bucket.sparse->gather();
  }
  if (const WorkPtr flags = std::exchange(flags_, nullptr)) flags->wait();
}

void GradientBuckets::wait(std::size_t index, double scale) {
  Bucket& bucket = buckets_[index];
  for (std::size_t piece = 0; piece < bucket.pieces; ++piece) {
    Reduction& reduction = reductions_[bucket.first_piece + piece];
    reduction.is_launched = false;
    if (const WorkPtr work = std::exchange(reduction.work, nullptr)) work->wait();
  }
  if (bucket.sparse) {
    bucket.sparse_average = bucket.sparse->finish(scale);
    return;
  }
  bucket.route->land();
  if (scale != 1 && !is_hooked(bucket)) {
    const at::NoGradGuard no_grad;
    bucket.memory->buffer().mul_(scale);
  }
}

void GradientBuckets::publish(std::size_t index) {
  Bucket& bucket = buckets_[index];
  const at::Tensor sparse_average = std::exchange(bucket.sparse_average, {});
  for (const buckets::BucketSlot& slot : layouts_[index].slots) {
    if (bucket.sparse) {
      slots_.publish_value(slot.parameter, sparse_average);
    } else {
      slots_.publish(slot.parameter);
    }
  }
}

void GradientBuckets::drain() {
  wait_quietly(flags_);
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
