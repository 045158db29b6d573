// What the reducer does with buckets: fill, launch, publish, rebuild.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/averaging/reducer.h"

namespace ddp {

bool Reducer::is_sparse(std::size_t bucket) const {
  return buckets_.kind(bucket) == GradientBuckets::Kind::kSparse;
}

void Reducer::make_ready(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (is_sparse(parameter.bucket)) return;
  const at::Tensor& gradient = slots().gradient(index);
  parameter.is_deferred =
      options_.batched_grad_copy && gradient.defined() && !gradient.requires_grad();
  if (!parameter.is_deferred) slots().stage(index);
}

void Reducer::stage_deferred(std::size_t index) {
  const buckets::BucketPiece& piece = buckets_.pieces()[index];
  const buckets::BucketLayout& bucket = buckets()[piece.bucket];
  for (std::size_t slot = piece.first_slot; slot < piece.first_slot + piece.slots; ++slot) {
    const std::size_t parameter = bucket.slots[slot].parameter;
    if (std::exchange(parameters_[parameter].is_deferred, false)) slots().stage(parameter);
  }
}

// Stages the parameters that got no gradient; with static_graph, in the first backward, all
// parameters.
void Reducer::stage_rest() {
  for (std::size_t left = parameters_.size(); left > 0; --left) {
    const std::size_t index = left - 1;
    if (!progress_.mark_ready(index)) continue;
    if (parameters_[index].used) {
      make_ready(index);
    } else if (!is_sparse(parameters_[index].bucket)) {
      slots().stage_and_keep(index);
    }
  }
}

bool Reducer::divides_by_live() const {
  return joining() && !join_->options().divide_by_initial_world_size;
}

// A sum of float16 may be infinite where its average is not.
ReduceOp Reducer::reduce_op(std::size_t bucket) const {
  return divides_by_live() && !buckets_.is_half(bucket) ? ReduceOp::kSum : ReduceOp::kAvg;
}

// What is left to multiply the bucket by.
double Reducer::scale_of(std::size_t bucket) const {
  const double ranks = divides_by_live() ? join_->live() : group_->size();
  if (is_sparse(bucket) || reduce_op(bucket) == ReduceOp::kSum) return 1.0 / ranks;
  return group_->size() / ranks;
}

bool Reducer::may_skip(std::size_t bucket) const {
  if (!options_.skip_all_reduce_unused_params) return false;
  const std::vector<buckets::BucketSlot>& slots = buckets()[bucket].slots;
  return std::none_of(slots.begin(), slots.end(), [&](const buckets::BucketSlot& slot) {
    return parameters_[slot.parameter].used;
  });
}

void Reducer::launch_ready_pieces() {
  while (const auto index = progress_.next_launch()) {
    timer_.ready(*index);
    const std::size_t bucket = buckets_.pieces()[*index].bucket;
    if (may_skip(bucket)) continue;
    if (options_.batched_grad_copy) stage_deferred(*index);
    buckets_.launch(*index, reduce_op(bucket));
    timer_.launched(*index);
  }
  if (timer_.is_on()) poll_pieces();
}

void Reducer::poll_pieces() {
  for (std::size_t piece = 0; piece < buckets_.pieces().size(); ++piece) {
    if (timer_.is_in_flight(piece) && buckets_.is_done(piece)) timer_.done(piece);
  }
}

void Reducer::note_done(std::size_t bucket) {
  const std::vector<buckets::BucketPiece>& pieces = buckets_.pieces();
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    if (pieces[piece].bucket == bucket) timer_.done(piece);
  }
}

void Reducer::exchange_used(bool shadow) {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    slots().set_used(index,
                     !shadow && parameters_[index].used && slots().gradient(index).defined());
  }
  buckets_.exchange_used();
}

// All ranks issue the same operations here, in the same order: the flags, then what hooks and
// sparse buckets need.
void Reducer::complete(bool shadow) {
  DDP_CHECK(progress_.all_launched(), "a piece of a bucket was not launched");
  const bool exchange =
      options_.find_unused_parameters || (options_.static_graph && synced_passes_ == 0);
  if (exchange) exchange_used(shadow);
  buckets_.finish_stages();
  if (joining() && !shadow) join_->finish();
  for (std::size_t bucket = 0; bucket < buckets().size(); ++bucket) {
    publish_bucket(bucket, scale_of(bucket), shadow);
  }
}

void Reducer::publish_bucket(std::size_t bucket, double scale, bool shadow) {
  if (!shadow && may_skip(bucket)) {
    for (const buckets::BucketSlot& slot : buckets()[bucket].slots) {
      if (!slots().is_used(slot.parameter)) continue;
      throw std::runtime_error(fmt::format(
          "skip_all_reduce_unused_params: parameter {} was used on another rank, but not on rank "
          "{}; with this option all ranks have to use the same parameters",
          name_of(slot.parameter), group_->rank()));
    }
  } else {
    buckets_.wait(bucket, scale);
    if (timer_.is_on()) note_done(bucket);
  }
  if (!shadow) buckets_.publish(bucket);
}

void Reducer::shadow_backward() {
  const std::lock_guard lock(mutex_);
  try {
    progress_.begin();
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (!is_sparse(parameters_[index].bucket)) slots().stage_zero(index);
      progress_.mark_ready(index);
    }
    while (const auto piece = progress_.next_launch()) {
      const std::size_t bucket = buckets_.pieces()[*piece].bucket;
      buckets_.launch(*piece, reduce_op(bucket), /*has_gradients=*/false);
    }
    complete(/*shadow=*/true);
    ++synced_passes_;
    if (!has_rebuilt_) rebuild();
  } catch (const std::exception& error) {
    buckets_.drain();
    buckets_.abort(error.what());
    throw;
  }
}

// Orders parameters by their last gradient, then those that got none, as on one rank with input.
void Reducer::rebuild() {
  has_rebuilt_ = true;
  std::vector<std::int64_t> order;
  std::vector<bool> seen(parameters_.size(), false);
  for (auto at = arrivals_.rbegin(); at != arrivals_.rend(); ++at) {
    if (!seen[*at]) order.push_back(static_cast<std::int64_t>(*at));
    seen[*at] = true;
  }
  std::reverse(order.begin(), order.end());
  for (std::size_t left = seen.size(); left > 0; --left) {
    if (!seen[left - 1]) order.push_back(static_cast<std::int64_t>(left - 1));
  }
  const Rank root = joining() ? join_->first_live() : 0;
  if (group_->size() > 1) {
    group_->broadcast({order.data(), order.size(), DType::kI64}, root, {{}, "order of gradients"})
        ->wait();
  }
  GradientBuckets::Plan plan =
      planner_.in_order(std::vector<std::size_t>(order.begin(), order.end()));
  if (bucket_names(plan.layouts, slots().named()) != bucket_layout()) adopt(std::move(plan));
}

}  // namespace ddp
