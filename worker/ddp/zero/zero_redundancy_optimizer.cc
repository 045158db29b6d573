#include "worker/ddp/zero/zero_redundancy_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "worker/buckets/zero_partition.h"
#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/zero/zero_hook.h"

namespace ddp {
namespace {

using torch::optim::AdagradParamState;

buckets::ZeroPartition partition_of(const Reducer& reducer, int world_size) {
  std::vector<std::vector<buckets::ZeroPartition::Slot>> buckets;
  for (const buckets::BucketLayout& layout : reducer.buckets()) {
    auto& slots = buckets.emplace_back();
    for (const buckets::BucketSlot& slot : layout.slots) {
      slots.push_back({slot.parameter,
                       static_cast<std::size_t>(reducer.parameter(slot.parameter).tensor.numel())});
    }
  }
  return {std::move(buckets), reducer.num_parameters(), world_size};
}

// Elements of a packed tensor's memory, as a flat tensor that shares it without being a view in
// autograd's sense.
at::Tensor flat_part(const at::Tensor& packed, buckets::ZeroPartition::Span span) {
  at::Tensor part = at::empty({0}, packed.options());
  part.set_(packed.storage(), packed.storage_offset() + static_cast<std::int64_t>(span.begin),
            {static_cast<std::int64_t>(span.count)}, {1});
  return part;
}

void check_model(DistributedDataParallelCore& model) {
  const Reducer& reducer = model.reducer();
  if (const CommHook* hook = reducer.comm_hook()) {
    throw std::logic_error(
        fmt::format("ZeroRedundancyOptimizer reduces gradients in its own way; the model has the "
                    "communication hook {} already",
                    hook->name()));
  }
  for (std::size_t index = 0; index < reducer.num_parameters(); ++index) {
    const NamedTensor& parameter = reducer.parameter(index);
    if (!parameter.tensor.device().is_cpu()) {
      throw std::invalid_argument(
          fmt::format("ZeroRedundancyOptimizer: parameter {} is on {}; it must be on the CPU",
                      parameter.name, parameter.tensor.device().str()));
    }
    if (!reducer.takes_hook(index)) {
      throw std::invalid_argument(fmt::format(
          "ZeroRedundancyOptimizer: the gradient of parameter {} is sparse or delayed; such "
          "gradients are reduced whole",
          parameter.name));
    }
  }
}

void check_optimizer(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw std::invalid_argument(
        "ZeroRedundancyOptimizer: LBFGS cannot be divided, since each of its steps looks at all "
        "parameters");
  }
  // Adagrad has state from its beginning.
  const bool is_new =
      std::all_of(optimizer.state().begin(), optimizer.state().end(), [](const auto& entry) {
        const auto* state = dynamic_cast<const AdagradParamState*>(entry.second.get());
        return state != nullptr && state->step() == 0;
      });
  if (!is_new) {
    throw std::invalid_argument(
        "ZeroRedundancyOptimizer: the optimizer has made steps; wrap it before the first one");
  }
}

}  // namespace

struct ZeroRedundancyOptimizer::Impl {
  Impl(torch::optim::Optimizer& wrapped, DistributedDataParallelCore& core,
       const ZeroOptions& chosen)
      : optimizer(wrapped),
        model(core),
        options(chosen),
        group(core.group()),
        partition(partition_of(core.reducer(), core.group().size())) {}

  void flatten();
  void divide();
  void divide_state();
  void divide_parameter(const at::Tensor& parameter, std::vector<at::Tensor>& into);
  void add_part(std::size_t index, buckets::ZeroPartition::Span span, bool is_common,
                std::vector<at::Tensor>& into);

  void take_gradients(bool shadow);
  void update();
  void publish();
  void wait();
  void step(bool shadow);

  torch::optim::Optimizer& optimizer;
  DistributedDataParallelCore& model;
  const ZeroOptions options;
  ProcessGroup& group;
  const buckets::ZeroPartition partition;
  std::shared_ptr<ZeroHook> hook;
  std::vector<at::Tensor> flat;                                     // By bucket: its parameters.
  std::vector<SharedText> tags;                                     // By bucket.
  std::unordered_map<const at::TensorImpl*, std::size_t> index_of;  // Of the reducer's parameters.
  std::vector<Part> parts;
  std::vector<WorkPtr> gathers;
  std::uint64_t passes = 0;  // The reducer's, at the last step or zero_grad.
};

// Moves the parameters of each bucket together, in the order of their gradients.
void ZeroRedundancyOptimizer::Impl::flatten() {
  const at::NoGradGuard no_grad;
  const Reducer& reducer = model.reducer();
  for (std::size_t bucket = 0; bucket < partition.buckets().size(); ++bucket) {
    const auto& slots = partition.buckets()[bucket].slots;
    const at::ScalarType type = reducer.parameter(slots.front().parameter).tensor.scalar_type();
    flat.push_back(registered_zeros(
        group, static_cast<std::int64_t>(partition.buckets()[bucket].elements), type));
    tags.emplace_back(
        fmt::format("parameters of bucket {} of {}", bucket, partition.buckets().size()));
    for (const auto& slot : slots) {
      at::Tensor parameter = reducer.parameter(slot.parameter).tensor;
      const auto offset = static_cast<std::int64_t>(partition.place(slot.parameter).offset);
      const at::Tensor moved = slot_of(flat.back(), offset, parameter);
      moved.copy_(parameter);
      parameter.set_data(moved);
      index_of[parameter.unsafeGetTensorImpl()] = slot.parameter;
    }
  }
}

void ZeroRedundancyOptimizer::Impl::add_part(std::size_t index, buckets::ZeroPartition::Span span,
                                             bool is_common, std::vector<at::Tensor>& into) {
  const at::Tensor& parameter = model.reducer().parameter(index).tensor;
  Part part;
  part.tensor = flat_part(parameter, span).requires_grad_();
  part.parameter = parameter;
  part.begin = span.begin;
  part.elements = span.count;
  part.is_common = is_common;
  for (Rank rank = 0; rank < group.size(); ++rank)
    part.counts.push_back(partition.owned(index, rank).count);
  into.push_back(part.tensor);
  parts.push_back(std::move(part));
}

// Every rank has a part of every parameter, if an empty one: so all ranks know what there is once
// for a parameter, such as the number of Adam's steps.
void ZeroRedundancyOptimizer::Impl::divide_parameter(const at::Tensor& parameter,
                                                     std::vector<at::Tensor>& into) {
  const auto found = index_of.find(parameter.unsafeGetTensorImpl());
  if (found == index_of.end()) {
    if (parameter.requires_grad()) {
      throw std::invalid_argument(
          fmt::format("ZeroRedundancyOptimizer: the optimizer has a parameter, {}, whose gradient "
                      "the model does not reduce",
                      describe(parameter)));
    }
    into.push_back(parameter);
    const auto elements = static_cast<std::size_t>(parameter.numel());
    parts.push_back({parameter, parameter, 0, elements, false, {}});
    return;
  }
  add_part(found->second, partition.owned(found->second, group.rank()), false, into);
  if (const auto common = partition.common(found->second); common.count > 0)
    add_part(found->second, common, true, into);
}

void ZeroRedundancyOptimizer::Impl::divide() {
  std::vector<std::vector<at::Tensor>> divided;
  for (auto& param_group : optimizer.param_groups()) {
    auto& into = divided.emplace_back();
    for (const at::Tensor& parameter : param_group.params()) divide_parameter(parameter, into);
  }
  for (std::size_t i = 0; i < divided.size(); ++i)
    optimizer.param_groups()[i].params() = std::move(divided[i]);
}

// Of Adagrad, whose sums begin with a value.
void ZeroRedundancyOptimizer::Impl::divide_state() {
  using State = std::decay_t<decltype(optimizer.state())>;
  State whole = std::exchange(optimizer.state(), {});
  for (const Part& part : parts) {
    const auto found = whole.find(compat::state_key<State>(part.parameter));
    if (found == whole.end()) continue;
    const auto& first = static_cast<const AdagradParamState&>(*found->second);
    auto state = std::make_unique<AdagradParamState>(first);
    if (!part.counts.empty())
      state->sum(flat_part(first.sum(), {part.begin, part.elements}).clone());
    optimizer.state()[compat::state_key<State>(part.tensor)] = std::move(state);
  }
}

// Gives the parts their gradients, which are parts of the parameters'. A rank without input has
// none of its own, and takes what the others have reduced into its buckets. What no rank uses
// (static_graph) has no gradient on any.
void ZeroRedundancyOptimizer::Impl::take_gradients(bool shadow) {
  for (const Part& part : parts) {
    if (part.counts.empty()) continue;
    at::Tensor& gradient = part.tensor.mutable_grad();
    if (shadow) {
      const std::size_t index = index_of.at(part.parameter.unsafeGetTensorImpl());
      if (!model.reducer().is_used(index)) {
        gradient.reset();
        continue;
      }
      const buckets::ZeroPartition::Place& place = partition.place(index);
      const at::Tensor& buffer = hook->buffer(place.bucket);
      // With mixed precision it may have been averaged in another type than .grad has.
      gradient = flat_part(buffer, {place.offset + part.begin, part.elements})
                     .to(part.parameter.scalar_type());
      continue;
    }
    at::Tensor whole = part.parameter.grad();
    if (!whole.defined()) {
      gradient.reset();
      continue;
    }
    const at::NoGradGuard no_grad;
    if (whole.layout() != at::kStrided || whole.strides() != part.parameter.strides()) {
      const at::Tensor packed =
          at::empty_strided(part.parameter.sizes(), part.parameter.strides(), whole.options());
      whole = packed.copy_(whole.detach());
      // What is done to the parts' gradients, such as clipping, is then seen here the next time.
      at::Tensor(part.parameter).mutable_grad() = whole;
    }
    const auto* begin = static_cast<const std::byte*>(whole.data_ptr()) +
                        part.begin * at::elementSize(whole.scalar_type());
    const bool is_there = gradient.defined() && gradient.data_ptr() == begin &&
                          gradient.scalar_type() == whole.scalar_type();
    if (!is_there) gradient = flat_part(whole.detach(), {part.begin, part.elements});
  }
}

void ZeroRedundancyOptimizer::Impl::publish() {
  // Forward begins with what backward ended with.
  for (std::size_t bucket = flat.size(); bucket-- > 0;) {
    const std::size_t share = partition.buckets()[bucket].share;
    if (share == 0 || group.size() == 1) continue;
    const Buffer all = buffer_of(flat[bucket]);
    const std::size_t bytes = share * dtype_bytes(all.type);
    auto* const data = static_cast<std::byte*>(all.data);
    gathers.push_back(
        group.all_gather({data + static_cast<std::size_t>(group.rank()) * bytes, share, all.type},
                         {data, partition.divided(bucket), all.type}, {{}, tags[bucket]}));
    gathers.back()->start();
  }
  for (const Part& part : parts) {
    if (!part.is_common) mark_changed(part.parameter);
  }
}

void ZeroRedundancyOptimizer::Impl::wait() {
  std::vector<WorkPtr> pending = std::exchange(gathers, {});
  for (std::size_t i = 0; i < pending.size(); ++i) {
    try {
      pending[i]->wait();
    } catch (...) {
      for (WorkPtr& work : pending) wait_quietly(work);
      throw;
    }
  }
  // Kept for its memory.
  pending.clear();
  gathers = std::move(pending);
}

void ZeroRedundancyOptimizer::Impl::step(bool shadow) {
  wait();
  take_gradients(shadow);
  optimizer.step();
  passes = model.reducer().synced_passes();
  publish();
  if (!options.overlap_with_forward) wait();
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(torch::optim::Optimizer& optimizer,
                                                 DistributedDataParallelCore& model,
                                                 const ZeroOptions& options) {
  check_model(model);
  check_optimizer(optimizer);
  model.reducer().keep_buckets();
  impl_ = std::make_unique<Impl>(optimizer, model, options);
  impl_->flatten();
  impl_->divide();
  impl_->divide_state();
  impl_->hook = std::make_shared<ZeroHook>(impl_->partition, impl_->group);
  model.reducer().register_comm_hook(impl_->hook);
  model.set_sharded_step({.wait = [impl = impl_.get()] { impl->wait(); },
                          .shadow = [impl = impl_.get()] { impl->step(true); }});
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() {
  for (WorkPtr& work : impl_->gathers) wait_quietly(work);
  impl_->hook->close();
  impl_->model.set_sharded_step({});
}

void ZeroRedundancyOptimizer::step() {
  const std::uint64_t since = impl_->model.reducer().synced_passes() - impl_->passes;
  if (since > 1) {
    throw std::logic_error(
        fmt::format("ZeroRedundancyOptimizer::step: {} backwards were reduced since the last step; "
                    "all but the last of a step belong under no_sync()",
                    since));
  }
  impl_->model.announce_step();
  impl_->step(false);
}

void ZeroRedundancyOptimizer::wait() { impl_->wait(); }

double ZeroRedundancyOptimizer::clip_grad_norm_(double max_norm, double norm_type,
                                                bool error_if_nonfinite) {
  if (impl_->model.is_joining()) {
    throw std::logic_error(
        "ZeroRedundancyOptimizer::clip_grad_norm_: ranks without input cannot take part; leave it "
        "out in the scope of join");
  }
  impl_->take_gradients(false);
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> counted;
  for (const Part& part : impl_->parts) {
    const at::Tensor& gradient = part.tensor.grad();
    if (!gradient.defined()) continue;
    gradients.push_back(gradient);
    // What all ranks have counts once.
    const bool is_own = !part.is_common && !part.counts.empty();
    if (is_own || impl_->group.rank() == 0) counted.push_back(gradient);
  }
  // The sum of the parts, or the largest, on all ranks alike; a NaN stays either way.
  const auto join = [&](double part) {
    const ReduceOp op = std::isinf(norm_type) ? ReduceOp::kMax : ReduceOp::kSum;
    impl_->group.all_reduce({&part, 1, DType::kF64}, op, {{}, "clip_grad_norm_"})->wait();
    return part;
  };
  return clip_gradients(gradients, counted, join, max_norm, norm_type, error_if_nonfinite);
}

void ZeroRedundancyOptimizer::zero_grad(bool set_to_none) {
  impl_->passes = impl_->model.reducer().synced_passes();
  impl_->model.reducer().zero_grad(set_to_none);
}

torch::optim::Optimizer& ZeroRedundancyOptimizer::optimizer() { return impl_->optimizer; }

const std::vector<ZeroRedundancyOptimizer::Part>& ZeroRedundancyOptimizer::parts() const {
  return impl_->parts;
}

std::size_t ZeroRedundancyOptimizer::elements() const {
  std::size_t sum = 0;
  for (const Part& part : impl_->parts) {
    if (!part.counts.empty()) sum += part.elements;
  }
  return sum;
}

}  // namespace ddp
