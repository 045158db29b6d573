#include "worker/ddp/averaging/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/averaging/hook_runner.h"
#include "worker/ddp/averaging/reduction_plan.h"
#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/tensors/module_state.h"

namespace ddp {

namespace {

constexpr double kMostMebibytes = 1024.0 * 1024.0;

buckets::BucketLimits same_limit(double cap_mb) {
  if (cap_mb == 0) {
    const std::size_t unlimited = std::numeric_limits<std::size_t>::max();
    return {unlimited, unlimited};
  }
  const auto bytes = static_cast<std::size_t>(std::ceil(cap_mb * 1024 * 1024));
  return {bytes, bytes};
}

}  // namespace

GradientReducer::GradientReducer(std::shared_ptr<ProcessGroup> group,
                                 const DistributedOptimizerOptions& options)
    : group_(std::move(group)), options_(options) {
  if (!(options_.bucket_cap_mb >= 0 && options_.bucket_cap_mb <= kMostMebibytes)) {
    throw std::invalid_argument(fmt::format(
        "bucket_cap_mb is {}; it must be at least 0 (one bucket) and at most 1048576 MiB",
        options_.bucket_cap_mb));
  }
  check_device_groups(options_.device_groups, *group_);
}

GradientReducer::~GradientReducer() {
  if (buckets_) buckets_->drain();
}

void GradientReducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  check_new_hook(hook.get(), hook_.get());
  if (buckets_) {
    throw std::logic_error("register_comm_hook must be called before the first reduction");
  }
  hook_ = std::move(hook);
}

bool GradientReducer::is_planned(const std::vector<at::Tensor>& parameters) const {
  return !listed_.empty() &&
         std::equal(listed_.begin(), listed_.end(), parameters.begin(), parameters.end(),
                    [](const Listed& listed, const at::Tensor& parameter) {
                      return listed.tensor.is_same(parameter) &&
                             listed.requires_grad == parameter.requires_grad();
                    });
}

void GradientReducer::plan(const std::vector<at::Tensor>& parameters) {
  listed_.clear();
  buckets_.reset();
  std::vector<NamedTensor> trainable;
  std::unordered_set<const at::TensorImpl*> seen;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& parameter = parameters[index];
    if (!parameter.requires_grad()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    trainable.push_back(
        {naming_ ? naming_(parameter, index) : fmt::format("parameter {}", index), parameter, {}});
  }
  verify_same_model({trainable, {}}, *group_);
  const ReductionPlanner planner(trainable, {.limits = same_limit(options_.bucket_cap_mb)});
  auto buckets = std::make_unique<GradientBuckets>(
      std::move(trainable), group_,
      GradientBuckets::Options{
          .slots = {.as_views = options_.gradient_as_bucket_view, .densify = true},
          .device_groups = options_.device_groups});
  if (hook_) buckets->set_hook(hook_);
  buckets->build(planner.first(), /*with_memory=*/true);
  buckets_ = std::move(buckets);
  for (const at::Tensor& parameter : parameters) {
    listed_.push_back({parameter, parameter.requires_grad()});
  }
}

BucketNames GradientReducer::bucket_layout() const {
  return buckets_ ? bucket_names(buckets_->layouts(), buckets_->slots().named()) : BucketNames();
}

void GradientReducer::reduce(const std::vector<at::Tensor>& parameters) {
  if (group_->size() == 1 && !hook_) return;
  const at::NoGradGuard no_grad;
  if (!is_planned(parameters)) plan(parameters);
  if (buckets_->layouts().empty()) return;
  try {
    exchange();
  } catch (const std::exception& error) {
    buckets_->abort(error.what());
    buckets_->drain();
    throw;
  }
}

void GradientReducer::exchange() {
  GradientSlots& slots = buckets_->slots();
  for (std::size_t index = 0; index < slots.size(); ++index) {
    slots.set_used(index, slots.gradient(index).defined());
  }
  // Issued first, so that it runs while this rank fills its buckets.
  buckets_->exchange_used();
  for (std::size_t piece = 0; piece < buckets_->pieces().size(); ++piece) {
    const std::size_t bucket = buckets_->pieces()[piece].bucket;
    for (const buckets::BucketSlot& slot : buckets_->layouts()[bucket].slots)
      slots.stage(slot.parameter);
    buckets_->launch(piece, ReduceOp::kAvg);
  }
  buckets_->finish_stages();
  for (std::size_t bucket = 0; bucket < buckets_->layouts().size(); ++bucket) {
    buckets_->wait(bucket, 1);
    buckets_->publish(bucket);
  }
}

}  // namespace ddp
