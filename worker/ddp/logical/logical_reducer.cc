#include "worker/ddp/logical/logical_reducer.h"

#include <cstddef>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "common/base/shared_text.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_buffers.h"
#include "worker/ddp/averaging/gradient_slots.h"
#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/logical/logical_sum.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// In which gradients of the type are summed.
DType sum_type(const NamedTensor& parameter) {
  element_type(parameter.tensor, parameter.name);  // In host memory.
  return gradient_type(parameter.tensor, parameter.name) == DType::kF64 ? DType::kF64 : DType::kF32;
}

// Once the workers agree on what they are about to train.
LogicalWorld agreed_world(const ModuleState& state, ProcessGroup& group, int logical_size) {
  verify_same_model(state, group, {fmt::format("{} logical ranks", logical_size)});
  return {logical_size, group.rank(), group.size()};
}

}  // namespace

// A bucket of all parameters whose gradients are summed in one type.
struct LogicalReducer::Sum {
  LogicalSum sum;
  std::vector<buckets::BucketSlot> members;
  SharedText tag;
  std::vector<std::vector<at::Tensor>> slots{};  // By level of the sum.
};

LogicalReducer::LogicalReducer(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                               int logical_size)
    : LogicalReducer(state_of(module), std::move(group), logical_size) {}

LogicalReducer::LogicalReducer(const ModuleState& state, std::shared_ptr<ProcessGroup> group,
                               int logical_size)
    : world_(agreed_world(state, *group, logical_size)),
      group_(std::move(group)),
      slots_(std::make_unique<GradientSlots>(
          state.trainable(),
          GradientSlots::Options{.as_views = true, .convert = true, .densify = true})) {
  const std::vector<NamedTensor>& parameters = slots_->named();
  std::vector<buckets::BucketParameter> sizes;
  for (const NamedTensor& parameter : parameters) {
    const DType type = sum_type(parameter);
    const auto count = static_cast<std::size_t>(parameter.tensor.numel());
    sizes.push_back({count * dtype_bytes(type), static_cast<int>(type)});
  }
  const std::vector<buckets::BucketLayout> layouts =
      buckets::plan_buckets(sizes, {kNoLimit, kNoLimit});
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const auto type = static_cast<DType>(layouts[index].type);
    sums_.push_back({.sum = {world_, group_, layouts[index].bytes / dtype_bytes(type),
                             type == DType::kF64 ? at::kDouble : at::kFloat},
                     .members = layouts[index].slots,
                     .tag = bucket_tag(index, layouts, parameters)});
  }
  forget_used();
}

LogicalReducer::~LogicalReducer() = default;

// The gradients' parts of the tensor that sum.sum is at. Those of level 0 get the average.
const std::vector<at::Tensor>& LogicalReducer::slots_at(Sum& sum, const at::Tensor& flat) {
  const std::size_t level = sum.sum.level();
  if (sum.slots.size() <= level) sum.slots.resize(level + 1);
  std::vector<at::Tensor>& slots = sum.slots[level];
  if (!slots.empty()) return slots;
  std::vector<at::Tensor> parameters;
  for (const buckets::BucketSlot& member : sum.members) {
    parameters.push_back(slots_->parameter(member.parameter).tensor);
  }
  slots = slots_of(flat, parameters);
  for (std::size_t i = 0; i < slots.size() && level == 0; ++i) {
    slots_->place(sum.members[i].parameter, slots[i]);
  }
  return slots;
}

void LogicalReducer::add() {
  const at::NoGradGuard no_grad;
  try {
    for (Sum& sum : sums_) {
      const std::vector<at::Tensor>& slots = slots_at(sum, sum.sum.next());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::size_t parameter = sum.members[i].parameter;
        if (slots_->gradient(parameter).defined()) slots_->set_used(parameter, true);
        slots_->stage_in(slots[i], parameter);
      }
      sum.sum.add();
    }
  } catch (const std::invalid_argument& error) {
    group_->abort(error.what());
    throw;
  }
}

void LogicalReducer::reduce() {
  const at::NoGradGuard no_grad;
  for (Sum& sum : sums_) sum.sum.average(sum.tag);
  if (world_.workers() > 1 && slots_->size() != 0) slots_->exchange_used(*group_)->wait();
  for (std::size_t index = 0; index < slots_->size(); ++index) slots_->publish(index);
  forget_used();
}

void LogicalReducer::restart() {
  for (Sum& sum : sums_) sum.sum.restart();
  forget_used();
}

void LogicalReducer::forget_used() {
  for (std::size_t index = 0; index < slots_->size(); ++index) slots_->set_used(index, false);
}

}  // namespace ddp
