#include "worker/ddp/reducer.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "common/base/check.h"
#include "worker/ddp/tensors.h"

namespace ddp {
namespace {

using torch::autograd::variable_list;

constexpr std::size_t kNamesInMessage = 10;

// Autograd's record of the backward that runs on this thread. Its address tells backwards apart
// while they live.
const void* current_graph() { return torch::autograd::get_current_graph_task_exec_info(); }

std::string tag_of(std::size_t index, std::size_t count, const std::string& first,
                   const std::string& last) {
  if (first == last) return fmt::format("bucket {} of {} ({})", index, count, first);
  return fmt::format("bucket {} of {} ({} .. {})", index, count, first, last);
}

}  // namespace

struct Reducer::Pass {
  Pass(std::shared_ptr<ProcessGroup> group_in, const void* graph_in)
      : group(std::move(group_in)), graph(graph_in) {}
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  ~Pass() {
    if (finished || group->size() == 1) return;
    try {
      group->abort("backward ended by an exception before its gradients were reduced");
    } catch (const std::exception&) {
      // Nothing is left to tell the peers with; their deadlines end their wait.
    }
  }

  std::shared_ptr<ProcessGroup> group;
  const void* graph;
  bool finished = false;
};

Reducer::Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
                 ReducerOptions options)
    : group_(std::move(group)),
      options_(options),
      layouts_([&] {
        std::vector<BucketParameter> sizes;
        for (const NamedTensor& parameter : parameters) {
          if (!parameter.tensor.requires_grad()) {
            throw std::invalid_argument(
                fmt::format("parameter {} requires no gradient", parameter.name));
          }
          const DType type = gradient_type(parameter.tensor, "parameter " + parameter.name);
          const auto count = static_cast<std::size_t>(parameter.tensor.numel());
          sizes.push_back({count * dtype_bytes(type), static_cast<int>(type)});
        }
        return plan_buckets(sizes, options.limits);
      }()),
      used_flags_(parameters.size(), 0),
      progress_(layouts_, parameters.size()) {
  parameters_.reserve(parameters.size());
  for (NamedTensor& parameter : parameters) {
    parameters_.emplace_back();
    parameters_.back().named = std::move(parameter);
  }
  make_buckets();
  for (std::size_t index = 0; index < parameters_.size(); ++index) add_hook(index);
}

Reducer::~Reducer() {
  for (Parameter& parameter : parameters_) {
    if (parameter.node) parameter.node->del_post_hook(parameter.hook);
  }
  drain();
}

void Reducer::make_buckets() {
  buckets_.resize(layouts_.size());
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    const BucketLayout& layout = layouts_[index];
    Bucket& bucket = buckets_[index];
    bucket.tag =
        tag_of(index, layouts_.size(), parameters_[layout.slots.back().parameter].named.name,
               parameters_[layout.slots.front().parameter].named.name);
    for (const BucketSlot& slot : layout.slots) parameters_[slot.parameter].bucket = index;
    if (alone()) continue;
    const at::Tensor& like = parameters_[layout.slots.front().parameter].named.tensor;
    const std::size_t element_bytes = like.element_size();
    bucket.flat = registered_zeros(*group_, static_cast<std::int64_t>(layout.bytes / element_bytes),
                                   like.scalar_type());
    for (const BucketSlot& slot : layout.slots) {
      Parameter& parameter = parameters_[slot.parameter];
      parameter.slot =
          slot_of(bucket.flat, static_cast<std::int64_t>(slot.offset_bytes / element_bytes),
                  parameter.named.tensor);
    }
  }
}

void Reducer::add_hook(std::size_t index) {
  Parameter& parameter = parameters_[index];
  parameter.node = torch::autograd::impl::grad_accumulator(parameter.named.tensor);
  DDP_CHECK(parameter.node != nullptr, "{} is not a leaf", parameter.named.name);
  parameter.hook =
      parameter.node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, index](const variable_list& outputs, const variable_list& /*inputs*/) {
            on_gradient(index);
            return outputs;
          }));
}

bool Reducer::set_require_sync(bool require_sync) {
  const std::lock_guard lock(mutex_);
  return std::exchange(require_sync_, require_sync);
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  Parameter& parameter = parameters_[index];
  if (!require_sync_) {
    parameter.used = true;
    return;
  }
  enter_pass();
  parameter.used = true;
  try {
    if (!progress_.mark_ready(index)) {
      throw std::logic_error(
          fmt::format("parameter {} got its gradient twice in one backward", parameter.named.name));
    }
    if (alone()) return;
    stage(index);
    launch_ready_buckets();
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

void Reducer::enter_pass() {
  const void* graph = current_graph();
  const std::shared_ptr<Pass> pass = pass_.lock();
  if (!pass) {
    begin_pass(graph);
  } else if (pass->graph != graph) {
    throw std::logic_error(
        "a backward through a DistributedDataParallel module began before another one had ended; "
        "run them one after the other, and only the last one outside of no_sync()");
  }
}

void Reducer::begin_pass(const void* graph) {
  if (in_pass_) {
    // The backward before this one was abandoned; in a larger group that aborted the group.
    drain();
    for (Parameter& parameter : parameters_) parameter.used = false;
  }
  auto pass = std::make_shared<Pass>(group_, graph);
  // Queued at the first gradient, so that it runs however few gradients come.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this, pass] { finish_pass(*pass); });
  pass_ = pass;
  in_pass_ = true;
  progress_.begin();
}

void Reducer::stage(std::size_t index) {
  Parameter& parameter = parameters_[index];
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  if (!gradient.defined()) {
    if (parameter.slot.numel() != 0) {
      std::memset(parameter.slot.data_ptr(), 0, parameter.slot.nbytes());
    }
    return;
  }
  if (is_same_memory(gradient, parameter.slot)) return;
  if (gradient.layout() != at::kStrided || gradient.sizes() != parameter.slot.sizes() ||
      gradient.scalar_type() != parameter.slot.scalar_type()) {
    throw std::invalid_argument(
        fmt::format("the gradient of parameter {} is {}, the parameter {}; only dense gradients of "
                    "the parameter's type can be reduced",
                    parameter.named.name, describe(gradient), describe(parameter.named.tensor)));
  }
  copy_values(parameter.slot, gradient);
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(
        "DistributedDataParallel averages gradients that were made with create_graph, but not "
        "their graph: higher derivatives are those of this rank alone.");
  } else if (options_.gradient_as_bucket_view) {
    gradient = parameter.slot.variable_data();
  }
}

void Reducer::launch_ready_buckets() {
  while (const auto index = progress_.next_launch()) {
    Bucket& bucket = buckets_[*index];
    if (bucket.flat.numel() == 0) continue;
    bucket.work = group_->all_reduce(buffer_of(bucket.flat), ReduceOp::kAvg, {{}, bucket.tag});
  }
}

void Reducer::finish_pass(Pass& pass) {
  check_nothing_missing();
  if (!alone()) {
    stage_unused();
    launch_ready_buckets();
    DDP_CHECK(progress_.all_launched(), "a bucket was not launched");
    try {
      const bool find_unused = options_.find_unused_parameters;
      // Issued last, so it completes last: every bucket is done then.
      if (find_unused) reduce_used_flags()->wait();
      for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
        publish_bucket(bucket, find_unused);
      }
    } catch (...) {
      drain();
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  for (Parameter& parameter : parameters_) parameter.used = false;
  in_pass_ = false;
  pass.finished = true;
  ++synced_passes_;
}

void Reducer::check_nothing_missing() {
  if (options_.find_unused_parameters) return;
  std::vector<std::string> missing;
  std::size_t count = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.used) continue;
    if (++count <= kNamesInMessage) missing.push_back(parameter.named.name);
  }
  if (count == 0) return;
  const std::string text = fmt::format(
      "{} of {} parameters got no gradient in this backward: {}{}; they have no part in the loss: "
      "freeze them before wrapping the module, or set find_unused_parameters",
      count, parameters_.size(), fmt::join(missing, ", "), count > missing.size() ? ", ..." : "");
  abort(text);
  throw std::runtime_error(text);
}

void Reducer::stage_unused() {
  for (std::size_t left = parameters_.size(); left > 0; --left) {
    const std::size_t index = left - 1;
    if (!progress_.mark_ready(index)) continue;
    Parameter& parameter = parameters_[index];
    const at::Tensor& gradient = parameter.named.tensor.grad();
    if (!parameter.used && is_same_memory(gradient, parameter.slot)) {
      parameter.before_pass = gradient.clone();
    }
    stage(index);
  }
}

WorkPtr Reducer::reduce_used_flags() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    used_flags_[index] = parameter.used && parameter.named.tensor.grad().defined() ? 1 : 0;
  }
  return group_->all_reduce({used_flags_.data(), used_flags_.size(), DType::kU8}, ReduceOp::kMax,
                            {{}, "flags of used parameters"});
}

void Reducer::publish_bucket(std::size_t index, bool flags_known) {
  Bucket& bucket = buckets_[index];
  if (bucket.work) bucket.work->wait();
  bucket.work.reset();
  for (const BucketSlot& slot : layouts_[index].slots) {
    publish(parameters_[slot.parameter], !flags_known || used_flags_[slot.parameter] != 0);
  }
}

void Reducer::publish(Parameter& parameter, bool used_somewhere) {
  const at::Tensor before = std::exchange(parameter.before_pass, {});
  if (!used_somewhere) {
    if (before.defined()) copy_values(parameter.slot, before);
    return;
  }
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  if (!gradient.defined()) {
    gradient =
        options_.gradient_as_bucket_view ? parameter.slot.variable_data() : parameter.slot.clone();
  } else if (!is_same_memory(gradient, parameter.slot)) {
    copy_values(gradient, parameter.slot);
  }
}

void Reducer::drain() {
  for (Bucket& bucket : buckets_) wait_quietly(bucket.work);
}

void Reducer::zero_grad(bool set_to_none) {
  const at::NoGradGuard no_grad;
  if (options_.gradient_as_bucket_view && !set_to_none) {
    for (const Bucket& bucket : buckets_) {
      if (bucket.flat.defined()) bucket.flat.zero_();
    }
  }
  for (const Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.named.tensor.mutable_grad();
    if (set_to_none) {
      gradient.reset();
    } else if (!gradient.defined() || is_same_memory(gradient, parameter.slot)) {
      continue;
    } else if (gradient.requires_grad()) {
      gradient = at::zeros_like(gradient);
    } else {
      gradient.zero_();
    }
  }
}

void Reducer::abort(const std::string& reason) {
  if (!alone()) group_->abort(reason);
}

}  // namespace ddp
