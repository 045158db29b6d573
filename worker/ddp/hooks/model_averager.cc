#include "worker/ddp/hooks/model_averager.h"

#include <map>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

void average_model_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) by_type[parameter.scalar_type()].push_back(parameter);
  }
  for (const auto& [type, members] : by_type) {
    std::int64_t numel = 0;
    for (const at::Tensor& member : members) numel += member.numel();
    const at::Tensor flat = registered_zeros(group, numel, type);
    const std::vector<at::Tensor> slots = slots_of(flat, members);
    for (std::size_t i = 0; i < members.size(); ++i) copy_values(slots[i], members[i]);
    group.all_reduce(buffer_of(flat), ReduceOp::kAvg, {{}, "averaging the model"})->wait();
    for (std::size_t i = 0; i < members.size(); ++i) copy_values(members[i], slots[i]);
  }
}

ModelAverager::ModelAverager(std::shared_ptr<ProcessGroup> process_group)
    : process_group_(std::move(process_group)) {
  if (!process_group_) throw std::invalid_argument("a model averager was given no process group");
}

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  ProcessGroup* const group = step_ >= warm_up() ? group_of(step_) : nullptr;
  if (group != nullptr) average_model_parameters(parameters, *group);
  ++step_;
}

bool ModelAverager::in_agreement() const {
  return step_ <= warm_up() || group_of(step_ - 1) == process_group_.get();
}

void ModelAverager::average_parameters(const torch::optim::Optimizer& optimizer) {
  average_parameters(parameters_of(optimizer));
}

void ModelAverager::load_state(const nlohmann::json& state) {
  const auto step = state.is_object() ? state.find("step") : state.end();
  if (!state.is_object() || step == state.end() || !step->is_number_integer() ||
      step->get<std::int64_t>() < 0) {
    throw std::invalid_argument(
        fmt::format("the state of a model averager is {}, not {{\"step\": n}}", state.dump()));
  }
  step_ = step->get<std::int64_t>();
}

PeriodicModelAverager::PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps,
                                             std::shared_ptr<ProcessGroup> process_group)
    : ModelAverager(std::move(process_group)), period_(period), warmup_steps_(warmup_steps) {
  if (warmup_steps < 0) {
    throw std::invalid_argument(fmt::format(
        "PeriodicModelAverager: warmup_steps must not be negative, it is {}", warmup_steps));
  }
  if (period < 1) {
    throw std::invalid_argument(
        fmt::format("PeriodicModelAverager: period must be at least 1, not {}", period));
  }
  if (period == 1) {
    TORCH_WARN_ONCE(
        "PeriodicModelAverager with a period of 1 averages the model at every step, which costs no "
        "less than to average the gradients: use DistributedDataParallel alone");
  }
}

ProcessGroup* PeriodicModelAverager::group_of(std::int64_t step) const {
  return (step - warmup_steps_) % period_ == 0 ? &process_group() : nullptr;
}

}  // namespace ddp
