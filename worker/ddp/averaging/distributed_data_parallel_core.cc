#include "worker/ddp/averaging/distributed_data_parallel_core.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "worker/ddp/averaging/join_calls.h"
#include "worker/ddp/averaging/low_precision_parameters.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

std::size_t bytes_of(const char* option, double mebibytes) {
  if (!(mebibytes > 0 && mebibytes <= 1024.0 * 1024.0)) {
    throw std::invalid_argument(
        fmt::format("{} is {}; it must be above 0 and at most 1048576 MiB", option, mebibytes));
  }
  return static_cast<std::size_t>(std::ceil(mebibytes * 1024 * 1024));
}

buckets::BucketLimits limits_of(const DistributedDataParallelOptions& options) {
  buckets::BucketLimits limits;
  limits.other_bytes = bytes_of("bucket_cap_mb", options.bucket_cap_mb);
  limits.first_bytes =
      std::min(bytes_of("first_bucket_mb", options.first_bucket_mb), limits.other_bytes);
  for (const double cap : options.bucket_cap_mb_list) {
    limits.list.push_back(bytes_of("bucket_cap_mb_list", cap));
  }
  return limits;
}

// Names the exchange of buffers, which may come with every forward.
const SharedText& buffers_tag() {
  static const SharedText tag("buffers");
  return tag;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> result;
  for (const NamedTensor& item : named) result.push_back(item.tensor);
  return result;
}

// The options that decide which operations a rank issues, one line each.
std::vector<std::string> settings_of(const DistributedDataParallelOptions& options) {
  const auto type = [](std::optional<at::ScalarType> value) {
    return value ? type_name(*value) : "none";
  };
  std::vector<std::string> buckets;
  for (const auto& names : options.bucket_layout) {
    buckets.push_back(fmt::format("{}", fmt::join(names, " ")));
  }
  return {
      fmt::format("bucket_cap_mb {} {} [{}]", options.bucket_cap_mb, options.first_bucket_mb,
                  fmt::join(options.bucket_cap_mb_list, ", ")),
      fmt::format("forward_sync_buffers {}, at construction {}", options.syncs_buffers(),
                  options.syncs_first_buffers()),
      fmt::format("find_unused_parameters {}", options.find_unused_parameters),
      fmt::format("skip_all_reduce_unused_params {}", options.skip_all_reduce_unused_params),
      fmt::format("static_graph {}", options.static_graph),
      fmt::format("delay_all_reduce_named_params [{}] until {}",
                  fmt::join(options.delay_all_reduce_named_params, ", "),
                  options.param_to_hook_all_reduce),
      fmt::format("mixed_precision {} {} {}", type(options.mixed_precision.param_dtype),
                  type(options.mixed_precision.type_of_reduction()),
                  type(options.mixed_precision.buffer_dtype)),
      fmt::format("rebuild_buckets {}", options.rebuild_buckets),
      fmt::format("bucket_layout [{}]", fmt::join(buckets, "; ")),
      fmt::format("device_groups {}", options.device_groups.size()),
  };
}

ReducerOptions reducer_options(const torch::nn::Module& module,
                               const std::vector<NamedTensor>& trainable,
                               const DistributedDataParallelOptions& options) {
  ReducerOptions result;
  result.plan.limits = limits_of(options);
  result.plan.sparse = sparse_parameters(module, trainable);
  result.plan.delayed = options.delay_all_reduce_named_params;
  result.plan.delay_until = options.param_to_hook_all_reduce;
  result.plan.element_type = options.mixed_precision.type_of_reduction();
  result.find_unused_parameters = options.find_unused_parameters;
  result.skip_all_reduce_unused_params = options.skip_all_reduce_unused_params;
  result.gradient_as_bucket_view = options.gradient_as_bucket_view;
  result.static_graph = options.static_graph;
  result.batched_grad_copy = options.batched_grad_copy;
  result.rebuild_buckets = options.rebuild_buckets;
  result.bucket_layout = options.bucket_layout;
  result.device_groups = options.device_groups;
  return result;
}

}  // namespace

DistributedDataParallelCore::DistributedDataParallelCore(
    const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
    const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      options_(options),
      module_name_(module.name()),
      state_(
          std::make_unique<ModuleState>(state_of(module).without(options.parameters_to_ignore))) {
  limits_of(options);  // Wrong options throw here, on every rank.
  if (options.init_sync) verify_same_model(*state_, *group_, settings_of(options));
  // After verification, so that all ranks refuse together and none waits for the others.
  const std::vector<NamedTensor> trainable = state_->trainable();
  if (trainable.empty()) {
    throw std::invalid_argument(
        "the module has no parameter that requires a gradient; it needs no "
        "DistributedDataParallel");
  }
  const MixedPrecision& mixed = options.mixed_precision;
  ReducerOptions of_reducer = reducer_options(module, trainable, options);
  if (mixed.param_dtype) {
    low_ = std::make_unique<LowPrecisionParameters>(tensors_of(state_->parameters),
                                                    *mixed.param_dtype);
  }
  if (mixed.is_set()) {
    of_reducer.after_backward = [this] {
      if (low_) low_->restore();
    };
  }
  if (mixed.buffer_dtype) convert_buffers(tensors_of(state_->buffers), *mixed.buffer_dtype);
  buffers_ = std::make_unique<CoalescedBroadcast>(tensors_of(state_->buffers));
  reducer_ = std::make_unique<Reducer>(trainable, group_, std::move(of_reducer));
  for (const buckets::BucketLayout& bucket : reducer_->buckets()) {
    first_bucket_sizes_.push_back(bucket.bytes);
  }
  if (options.init_sync) {
    CoalescedBroadcast(parameters_and(options.syncs_first_buffers()))
        .run(*group_, 0, "parameters and buffers");
  }
}

DistributedDataParallelCore::~DistributedDataParallelCore() = default;

std::vector<at::Tensor> DistributedDataParallelCore::parameters_and(bool buffers) const {
  return buffers ? state_->tensors() : tensors_of(state_->parameters);
}

bool DistributedDataParallelCore::will_sync_buffers(bool is_training) const {
  return is_training && options_.syncs_buffers() && !buffers_->empty() &&
         reducer_->synced_passes() != buffers_as_of_;
}

DistributedDataParallelCore::Forward::Forward(DistributedDataParallelCore& core, bool is_training)
    : core_(core) {
  lowered_ = core.before_forward(is_training);
}

DistributedDataParallelCore::Forward::~Forward() {
  if (!is_done_ && lowered_) core_.low_->restore();
}

void DistributedDataParallelCore::Forward::done() {
  is_done_ = true;
  core_.after_forward(lowered_);
}

bool DistributedDataParallelCore::before_forward(bool is_training) {
  if (sharded_step_.wait) sharded_step_.wait();
  const bool with_gradients = at::GradMode::is_enabled();
  if (with_gradients && !low_) reducer_->check_types();
  if (with_gradients && reducer_->require_sync()) reducer_->timer().begin_forward();
  const bool with_buffers = will_sync_buffers(is_training);
  if (is_joining() && with_gradients) announce_forward(with_buffers);
  if (with_buffers) {
    buffers_as_of_ = reducer_->synced_passes();
    buffers_->run(*group_, is_joining() ? join_->first_live() : 0, buffers_tag());
  }
  // A backward that has failed has left them low.
  if (low_ && reducer_->drop_abandoned_passes()) low_->restore();
  const bool lowered = low_ && low_->lower();
  if (lowered && with_gradients) reducer_->renew_hooks();
  return lowered;
}

void DistributedDataParallelCore::after_forward(bool lowered) {
  if (!at::GradMode::is_enabled()) {
    if (lowered) low_->restore();
  } else if (reducer_->require_sync()) {
    reducer_->timer().end_forward();
  }
}

bool DistributedDataParallelCore::wants_outputs() const {
  return at::GradMode::is_enabled() && reducer_->require_sync() &&
         (options_.static_graph || reducer_->timer().is_on());
}

void DistributedDataParallelCore::watch_outputs(const std::vector<at::Tensor>& outputs) {
  reducer_->watch_outputs(outputs);
}

void DistributedDataParallelCore::set_sample_rate(int iterations) {
  reducer_->timer().set_rate(iterations);
}

void DistributedDataParallelCore::register_comm_hook(std::shared_ptr<CommHook> hook) {
  reducer_->register_comm_hook(std::move(hook));
}

void DistributedDataParallelCore::zero_grad(bool set_to_none) { reducer_->zero_grad(set_to_none); }

BucketNames DistributedDataParallelCore::bucket_layout() const { return reducer_->bucket_layout(); }

void DistributedDataParallelCore::broadcast_buffers() {
  if (is_joining()) join_->announce(JoinCalls::Call::kBuffers, join_model_);
  buffers_as_of_ = reducer_->synced_passes();
  buffers_->run(*group_, is_joining() ? join_->first_live() : 0, buffers_tag());
}

}  // namespace ddp
