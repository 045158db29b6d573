#include "worker/ddp/averaging/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

namespace {

constexpr double kMostMebibytes = 1024.0 * 1024.0;

BucketLimits same_limit(double cap_mb) {
  if (cap_mb == 0) {
    const std::size_t unlimited = std::numeric_limits<std::size_t>::max();
    return {unlimited, unlimited};
  }
  const auto bytes = static_cast<std::size_t>(std::ceil(cap_mb * 1024 * 1024));
  return {bytes, bytes};
}

}  // namespace

GradientReducer::GradientReducer(std::shared_ptr<ProcessGroup> group,
                                 const GradientReducerOptions& options)
    : group_(std::move(group)), options_(options) {
  if (!(options_.bucket_cap_mb >= 0 && options_.bucket_cap_mb <= kMostMebibytes)) {
    throw std::invalid_argument(fmt::format(
        "bucket_cap_mb is {}; it must be at least 0 (one bucket) and at most 1048576 MiB",
        options_.bucket_cap_mb));
  }
  check_device_groups(options_.device_groups, *group_);
}

GradientReducer::~GradientReducer() { drain(); }

void GradientReducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (!hook) throw std::invalid_argument("register_comm_hook was given no hook");
  if (hook_) {
    throw std::logic_error(fmt::format(
        "register_comm_hook can only be called once; there is {} already", hook_->name()));
  }
  if (!listed_.empty()) {
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
  routes_.clear();
  buckets_.clear();
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

  std::vector<BucketParameter> sizes;
  std::vector<c10::Device> devices;
  for (const NamedTensor& parameter : trainable) {
    const DType type = gradient_type(parameter.tensor, parameter.name);
    const auto count = static_cast<std::size_t>(parameter.tensor.numel());
    const int device = device_number(parameter.tensor.device(), devices);
    sizes.push_back({count * dtype_bytes(type), kind_number(type, device)});
  }
  const std::vector<BucketLayout> layouts = plan_buckets(sizes, same_limit(options_.bucket_cap_mb));
  buckets_ = make_grad_buckets(layouts, trainable, *group_);
  for (GradBucket& bucket : buckets_) {
    routes_.emplace_back(bucket, *group_, options_.device_groups);
  }
  tags_.clear();
  views_.clear();
  first_flag_.clear();
  std::size_t flags = 0;
  for (std::size_t bucket = 0; bucket < layouts.size(); ++bucket) {
    tags_.push_back(bucket_tag(bucket, layouts, trainable));
    views_.emplace_back(layouts[bucket].slots.size());
    first_flag_.push_back(flags);
    flags += layouts[bucket].slots.size();
  }
  used_.assign(flags, 0);
  works_.assign(layouts.size(), nullptr);
  for (const at::Tensor& parameter : parameters) {
    listed_.push_back({parameter, parameter.requires_grad()});
  }
}

void GradientReducer::reduce(const std::vector<at::Tensor>& parameters) {
  if (group_->size() == 1 && !hook_) return;
  const at::NoGradGuard no_grad;
  if (!is_planned(parameters)) {
    try {
      plan(parameters);
    } catch (...) {
      listed_.clear();
      throw;
    }
  }
  try {
    exchange();
  } catch (const std::exception& error) {
    abort_all(*group_, options_.device_groups, error.what());
    drain();
    throw;
  }
}

void GradientReducer::exchange() {
  if (used_.empty()) return;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    std::uint8_t* used = used_.data() + first_flag_[bucket];
    for (const at::Tensor& parameter : buckets_[bucket].parameters()) {
      *used++ = parameter.grad().defined() ? 1 : 0;
    }
  }
  static const SharedText tag("flags of gradients");
  // Issued first, so that it runs while this rank fills its buckets.
  flags_ = group_->all_reduce({used_.data(), used_.size(), DType::kU8}, ReduceOp::kMax, {{}, tag});
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    fill(bucket);
    start(bucket);
  }
  flags_->wait();
  flags_.reset();
  if (hook_) runner_.finish();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (works_[bucket]) works_[bucket]->wait();
    works_[bucket].reset();
    routes_[bucket].land();
    publish(bucket);
  }
}

void GradientReducer::fill(std::size_t bucket) {
  const GradBucket& contents = buckets_[bucket];
  for (std::size_t index = 0; index < contents.parameters().size(); ++index) {
    const at::Tensor& parameter = contents.parameters()[index];
    const at::Tensor& slot = contents.gradients()[index];
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      zero_values(slot);
      continue;
    }
    if (is_same_memory(gradient, slot)) continue;
    const bool is_sparse = gradient.is_sparse();
    if ((gradient.layout() != at::kStrided && !is_sparse) ||
        gradient.sizes() != parameter.sizes() || gradient.device() != parameter.device() ||
        gradient.scalar_type() != parameter.scalar_type()) {
      throw std::invalid_argument(fmt::format(
          "the gradient of {} ({}) is {} on {}; to be reduced, it must have its parameter's sizes "
          "and type and be on its device, {}",
          contents.names()[index], describe(parameter), describe(gradient), gradient.device().str(),
          parameter.device().str()));
    }
    copy_values(slot, is_sparse ? gradient.to_dense() : gradient);
  }
}

void GradientReducer::start(std::size_t bucket) {
  BucketRoute& route = routes_[bucket];
  if (hook_) {
    runner_.start(*hook_, route.on_host(), tags_[bucket].str());
  } else if (const std::size_t bytes = buckets_[bucket].buffer().nbytes(); bytes != 0) {
    works_[bucket] = route.all_reduce(0, bytes, ReduceOp::kAvg, {{}, tags_[bucket]});
  }
}

void GradientReducer::publish(std::size_t bucket) {
  const GradBucket& contents = buckets_[bucket];
  const std::uint8_t* used = used_.data() + first_flag_[bucket];
  for (std::size_t index = 0; index < contents.parameters().size(); ++index) {
    if (used[index] == 0) continue;
    const at::Tensor& slot = contents.gradients()[index];
    at::Tensor& gradient = contents.parameters()[index].mutable_grad();
    if (is_same_memory(gradient, slot)) continue;
    const bool is_dense = gradient.defined() && gradient.layout() == at::kStrided;
    if (is_dense && (!options_.gradient_as_bucket_view || gradient.requires_grad())) {
      copy_values(gradient, slot);
    } else {
      gradient = options_.gradient_as_bucket_view ? gradient_view(views_[bucket][index], slot)
                                                  : slot.clone();
    }
  }
}

void GradientReducer::drain() {
  wait_quietly(flags_);
  for (WorkPtr& work : works_) wait_quietly(work);
  runner_.drain();
}

}  // namespace ddp
