#include "worker/ddp/averaging/reducer.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "common/base/check.h"
#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/averaging/no_sync.h"
#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

using torch::autograd::variable_list;

namespace {

GradientBuckets::Options bucket_options(const ReducerOptions& options) {
  return {.slots = {.as_views = options.gradient_as_bucket_view,
                    .convert = options.after_backward != nullptr},
          .device_groups = options.device_groups,
          .element_type = options.plan.element_type,
          // Whether to skip is decided for a bucket.
          .pieces = options.skip_all_reduce_unused_params ? std::nullopt : options.pieces};
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
                 ReducerOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      planner_(parameters, options_.plan),
      buckets_(std::move(parameters), group_, bucket_options(options_)),
      reduced_(slots().named()),
      parameters_(slots().size()),
      progress_({}, 0) {
  if (options_.skip_all_reduce_unused_params && !options_.find_unused_parameters &&
      !options_.static_graph) {
    throw std::invalid_argument(
        "skip_all_reduce_unused_params needs find_unused_parameters or static_graph: else "
        "an unused parameter is an error");
  }
  check_device_groups(options_.device_groups, *group_);
  has_rebuilt_ = !options_.rebuild_buckets || !options_.bucket_layout.empty();
  adopt(options_.bucket_layout.empty() ? planner_.first()
                                       : planner_.from_names(options_.bucket_layout));
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    parameters_[index].type = slots().parameter(index).tensor.scalar_type();
    parameters_[index].device = slots().parameter(index).tensor.device();
    is_all_on_cpu_ = is_all_on_cpu_ && parameters_[index].device.is_cpu();
    add_hook(index);
  }
}

Reducer::~Reducer() {
  for (Parameter& parameter : parameters_) remove_hook(parameter);
  buckets_.drain();
}

// Without a hook, a group of one has nothing to do with buckets.
void Reducer::adopt(GradientBuckets::Plan plan) {
  buckets_.build(std::move(plan), group_->size() > 1 || buckets_.hook() != nullptr);
  follow_pieces();
}

void Reducer::follow_pieces() {
  tags_.clear();
  std::vector<buckets::BucketLayout> layouts;
  for (std::size_t index = 0; index < buckets_.pieces().size(); ++index) {
    const buckets::BucketPiece& piece = buckets_.pieces()[index];
    tags_.push_back(buckets_.tag(index));
    layouts.push_back(buckets::layout_of(piece, buckets()));
    for (const buckets::BucketSlot& slot : layouts.back().slots) {
      parameters_[slot.parameter].bucket = piece.bucket;
      parameters_[slot.parameter].piece = index;
    }
  }
  progress_ = buckets::BucketProgress(layouts, parameters_.size());
}

void Reducer::add_hook(std::size_t index) {
  Parameter& parameter = parameters_[index];
  parameter.node = torch::autograd::impl::grad_accumulator(slots().parameter(index).tensor);
  DDP_CHECK(parameter.node != nullptr, "{} is not a leaf", name_of(index));
  parameter.hook = parameter.node->add_post_hook(compat::make_post_hook(
      [this, index](const variable_list& outputs, const variable_list& /*inputs*/) {
        on_gradient(index);
        return outputs;
      }));
}

void Reducer::remove_hook(Parameter& parameter) {
  if (parameter.node) parameter.node->del_post_hook(parameter.hook);
  parameter.node.reset();
}

void Reducer::renew_hooks() {
  const std::lock_guard lock(mutex_);
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    Parameter& parameter = parameters_[index];
    const auto node = torch::autograd::impl::grad_accumulator(slots().parameter(index).tensor);
    if (node == parameter.node) continue;
    remove_hook(parameter);
    add_hook(index);
  }
}

void Reducer::check_types() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const NamedTensor& parameter = slots().parameter(index);
    const Parameter& at_construction = parameters_[index];
    const bool is_moved = parameter.tensor.device() != at_construction.device;
    if (!is_moved && parameter.tensor.scalar_type() == at_construction.type) continue;
    const std::string text =
        is_moved
            ? fmt::format(
                  "parameter {} is on {} now, it was on {} when the module was "
                  "wrapped; move the module first, then wrap it",
                  parameter.name, parameter.tensor.device().str(), at_construction.device.str())
            : fmt::format(
                  "parameter {} is {} now, it was {} when the module was wrapped; "
                  "convert the module first, then wrap it, or use mixed_precision",
                  parameter.name, type_name(parameter.tensor.scalar_type()),
                  type_name(at_construction.type));
    buckets_.abort(text);
    throw std::logic_error(text);
  }
}

void Reducer::watch_outputs(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([self = std::weak_ptr(self_)](const at::Tensor& gradient) {
      if (const auto reducer = self.lock()) (*reducer)->on_outputs();
      return gradient;
    });
  }
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  const std::lock_guard lock(mutex_);
  check_new_hook(hook.get(), buckets_.hook());
  if (in_pass_ && !pass_.expired()) {
    throw std::logic_error("register_comm_hook was called during a backward");
  }
  buckets_.set_hook(std::move(hook));
  if (!buckets_.has_memory()) {
    std::vector<GradientBuckets::Kind> kinds;
    for (std::size_t bucket = 0; bucket < buckets().size(); ++bucket) {
      kinds.push_back(buckets_.kind(bucket));
    }
    adopt({buckets(), std::move(kinds)});
  } else {
    follow_pieces();
  }
}

void Reducer::keep_buckets() {
  const std::lock_guard lock(mutex_);
  if (synced_passes_ > 0 || in_pass_) {
    throw std::logic_error("the buckets can only be kept before the first backward");
  }
  has_rebuilt_ = true;
}

bool Reducer::set_require_sync(bool require_sync) {
  const std::lock_guard lock(mutex_);
  return std::exchange(require_sync_, require_sync);
}

NoSync::NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.set_require_sync(false)) {}

NoSync::~NoSync() { reducer_.set_require_sync(before_); }

BucketNames Reducer::bucket_layout() const { return bucket_names(buckets(), slots().named()); }

std::vector<std::string> Reducer::unused_parameters() const {
  std::vector<std::string> names;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!parameters_[index].used_in_last) names.push_back(name_of(index));
  }
  return names;
}

}  // namespace ddp
