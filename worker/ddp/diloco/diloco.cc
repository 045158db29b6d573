#include "worker/ddp/diloco/diloco.h"

#include <map>
#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sub.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "worker/ddp/diloco/local_replica.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

constexpr const char* kDiLoCoTag = "DiLoCo";

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds)
    throw std::invalid_argument("DiLoCo: " + fmt::format(format, std::forward<Args>(args)...));
}

DiLoCoOptions checked(const DiLoCoOptions& options, const torch::nn::Module& module) {
  const std::int64_t fragments = options.fragments;
  expect(options.sync_every >= 1, "sync_every must be at least 1, not {}", options.sync_every);
  const auto parameters = static_cast<std::int64_t>(module.parameters().size());
  expect(parameters > 0, "the module has no parameters");
  expect(fragments >= 1 && fragments <= parameters,
         "fragments must be from 1 to the {} parameters, not {}", parameters, fragments);
  expect(options.sync_every % fragments == 0, "sync_every, {}, must be a multiple of fragments, {}",
         options.sync_every, fragments);
  const std::int64_t turn = options.sync_every / fragments;
  expect(options.fragment_sync_delay >= 0 && options.fragment_sync_delay < turn,
         "fragment_sync_delay must be from 0 to {}, below sync_every / fragments, not {}", turn - 1,
         options.fragment_sync_delay);
  expect(options.fragment_update_alpha >= 0 && options.fragment_update_alpha <= 1,
         "fragment_update_alpha must be from 0 to 1, not {}", options.fragment_update_alpha);
  expect(!options.transfer_dtype || at::isFloatingType(*options.transfer_dtype),
         "transfer_dtype must be a floating-point type");
  return options;
}

// Checks that a parameter can be averaged with the others.
void check_parameter(const std::string& name, const at::Tensor& parameter, at::ScalarType type) {
  (void)gradient_type(parameter, "DiLoCo: parameter " + name);
  expect(parameter.device().is_cpu(), "parameter {} is on {}, expected on the CPU", name,
         parameter.device().str());
  expect(parameter.scalar_type() == type, "parameter {} is {}, the first is {}; expected one type",
         name, type_name(parameter.scalar_type()), type_name(type));
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> diloco_outer_optimizer(
    std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
}

// LocalReplica's, and the averages that have come.
class DiLoCo::OwnState final : public CommHook {
 public:
  explicit OwnState(DiLoCo& of) : of_(of) {}

  std::string name() const override { return "diloco"; }
  Future run(GradBucket& bucket) override { return of_.replica_->run(bucket); }

  CommHookState state() const override {
    CommHookState state = of_.replica_->state();
    for (Fragment& fragment : of_.fragments_) {
      if (!fragment.is_under_way) continue;
      of_.arrive(fragment);
      for (std::size_t i = fragment.begin; i < fragment.end; ++i) {
        state.replicated["pending/" + of_.names_[i]] = fragment.slots[i - fragment.begin];
      }
    }
    return state;
  }
  void restore(const CommHookState& state) override {
    of_.replica_->restore(state);
    of_.pending_ = state.replicated;
  }

 private:
  DiLoCo& of_;
};

DiLoCo::DiLoCo(torch::nn::Module& module, torch::optim::Optimizer& inner,
               const DiLoCoOptions& options, const OuterOptimizer& outer)
    : module_(module),
      inner_(inner),
      options_(checked(options, module)),
      common_(std::make_shared<torch::nn::Module>()),
      replica_(std::make_unique<LocalReplica>(module, inner)) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module.named_parameters()) {
    check_parameter(parameter.key(), parameter.value(),
                    own_.empty() ? parameter.value().scalar_type() : own_.front().scalar_type());
    std::string name = parameter.key();
    for (char& c : name) c = c == '.' ? '/' : c;
    names_.push_back(name);
    own_.push_back(parameter.value());
    values_.push_back(common_->register_parameter(name, parameter.value().detach().clone()));
  }
  outer_ = outer(values_);
  expect(outer_ != nullptr, "the outer optimizer is null");
  cut_into_fragments();
}

DiLoCo::~DiLoCo() { leave(); }

// Each ends where its share of all elements does.
void DiLoCo::cut_into_fragments() {
  std::int64_t all = 0;
  for (const at::Tensor& parameter : own_) all += parameter.numel();
  const auto count = static_cast<std::size_t>(options_.fragments);
  std::int64_t passed = 0;
  std::size_t at = 0;
  for (std::size_t k = 0; k < count; ++k) {
    Fragment fragment;
    fragment.begin = at;
    const std::int64_t share =
        all * static_cast<std::int64_t>(k + 1) / static_cast<std::int64_t>(count);
    // One at least, and one left for each that follows.
    const std::size_t most = own_.size() - (count - k - 1);
    do {
      passed += own_[at++].numel();
    } while (at < most && (k + 1 == count || passed < share));
    fragment.end = at;
    fragments_.push_back(std::move(fragment));
  }
}

void DiLoCo::enter(std::shared_ptr<ProcessGroup> group) {
  expect(group != nullptr, "it was given no process group");
  leave();
  group_ = std::move(group);
  for (Fragment& fragment : fragments_) allocate(fragment);
  if (steps_ > 0) return;
  const at::NoGradGuard no_grad;
  CoalescedBroadcast(own_).run(*group_, 0, kDiLoCoTag);
  for (std::size_t i = 0; i < own_.size(); ++i) copy_values(values_[i], own_[i]);
}

void DiLoCo::allocate(Fragment& fragment) {
  const std::vector<at::Tensor> own(own_.begin() + static_cast<std::ptrdiff_t>(fragment.begin),
                                    own_.begin() + static_cast<std::ptrdiff_t>(fragment.end));
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : own) elements += parameter.numel();
  const at::ScalarType type = options_.transfer_dtype.value_or(own_.front().scalar_type());
  fragment.flat = registered_zeros(*group_, elements, type);
  fragment.slots = slots_of(fragment.flat, own);
}

void DiLoCo::leave() {
  for (Fragment& fragment : fragments_) {
    wait_quietly(fragment.work);
    fragment = {.begin = fragment.begin, .end = fragment.end};
  }
  group_.reset();
}

void DiLoCo::zero_grad() {
  for (at::Tensor& parameter : own_) parameter.mutable_grad().reset();
}

void DiLoCo::step() {
  if (!group_) throw std::logic_error("DiLoCo::step() needs a group: call enter() first");
  inner_.step();
  ++steps_;
  communicate_if_due();
}

// In each cycle of sync_every steps the fragments begin one after another, the last one at the end
// of the cycle.
std::int64_t DiLoCo::phase(std::size_t fragment) const {
  const std::int64_t turn = options_.sync_every / options_.fragments;
  return static_cast<std::int64_t>(fragment + 1) * turn % options_.sync_every;
}

void DiLoCo::communicate_if_due() {
  const std::int64_t delay = options_.fragment_sync_delay;
  for (std::size_t k = 0; k < fragments_.size(); ++k) {
    Fragment& fragment = fragments_[k];
    if (steps_ % options_.sync_every == phase(k)) begin(fragment);
    const bool is_due = (steps_ - delay) % options_.sync_every == phase(k);
    if (fragment.is_under_way && is_due) finish(fragment, options_.fragment_update_alpha);
  }
}

void DiLoCo::begin(Fragment& fragment) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = fragment.begin; i < fragment.end; ++i) {
    fragment.slots[i - fragment.begin].copy_(at::sub(values_[i], own_[i]));
  }
  fragment.work = group_->all_reduce(buffer_of(fragment.flat), ReduceOp::kAvg, {{}, kDiLoCoTag});
  fragment.work->start();
  fragment.is_under_way = true;
  communicated_bytes_ += fragment.flat.nbytes();
}

void DiLoCo::arrive(Fragment& fragment) {
  if (const WorkPtr work = std::exchange(fragment.work, nullptr)) work->wait();
}

void DiLoCo::finish(Fragment& fragment, double alpha) {
  arrive(fragment);
  fragment.is_under_way = false;
  for (std::size_t i = fragment.begin; i < fragment.end; ++i) {
    const at::Tensor& average = fragment.slots[i - fragment.begin];
    values_[i].mutable_grad() = average.to(values_[i].scalar_type());
  }
  outer_->step();  // Of those that have a gradient.
  const at::NoGradGuard no_grad;
  for (std::size_t i = fragment.begin; i < fragment.end; ++i) {
    values_[i].mutable_grad().reset();
    if (alpha == 0) {
      copy_values(own_[i], values_[i]);
    } else {
      own_[i].mul_(alpha).add_(values_[i], 1 - alpha);
    }
    mark_changed(own_[i]);
  }
}

void DiLoCo::synchronize() {
  if (!group_) throw std::logic_error("DiLoCo::synchronize() needs a group: call enter() first");
  for (std::size_t k = 0; k < fragments_.size(); ++k) {
    Fragment& fragment = fragments_[k];
    if (fragment.is_under_way) finish(fragment, 0);
    // What the ranks have learned since the last time, if there was a step.
    const bool is_new = steps_ > synchronized_at_ && steps_ % options_.sync_every != phase(k);
    if (is_new) begin(fragment);
    if (is_new) finish(fragment, 0);
  }
  synchronized_at_ = steps_;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own_.size(); ++i) copy_values(own_[i], values_[i]);
}

// Without synchronized_at_, a synchronize() after resuming would step again where the run that was
// not interrupted did not, and only on those ranks that are new.
nlohmann::json DiLoCo::progress() const {
  return {{"steps", steps_}, {"synchronized_at", synchronized_at_}};
}

void DiLoCo::set_progress(const nlohmann::json& saved) {
  const bool is_old = saved.is_number();  // It had the steps only.
  steps_ = is_old ? saved.get<std::int64_t>() : saved.at("steps").get<std::int64_t>();
  synchronized_at_ = is_old ? 0 : saved.at("synchronized_at").get<std::int64_t>();
}

std::shared_ptr<CommHook> DiLoCo::own_state() { return std::make_shared<OwnState>(*this); }

void DiLoCo::resume() {
  replica_->apply();
  const auto pending = std::exchange(pending_, {});
  const at::NoGradGuard no_grad;
  for (Fragment& fragment : fragments_) {
    for (std::size_t i = fragment.begin; i < fragment.end; ++i) {
      const auto found = pending.find("pending/" + names_[i]);
      if (found == pending.end()) continue;
      fragment.slots[i - fragment.begin].copy_(found->second);
      fragment.is_under_way = true;
    }
  }
}

}  // namespace ddp
