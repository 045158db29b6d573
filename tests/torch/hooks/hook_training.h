#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/hook_runner.h"
#include "worker/ddp/tensors/tensors.h"

// A small model whose gradients go through buckets and a communication hook; hooks_transcript.py
// trains the same one.
namespace ddp::test {

using HookPtr = std::shared_ptr<CommHook>;

// Numbers that C++ and Python generate alike.
inline at::Tensor formula(at::IntArrayRef shape, std::int64_t salt, float scale) {
  const at::Tensor count = torch::arange(c10::multiply_integers(shape));
  return (((count * 37 + salt * 11) % 101 - 50).to(at::kFloat) / scale).view(shape);
}

inline torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(8, 12), torch::nn::Tanh(),
                              torch::nn::Linear(12, 12), torch::nn::Tanh(),
                              torch::nn::Linear(12, 6));
  const torch::NoGradGuard no_grad;
  std::int64_t salt = 0;
  for (const auto& parameter : model->parameters()) {
    parameter.copy_(formula(parameter.sizes(), salt++, 128));
  }
  return model;
}

inline at::Tensor loss_of(torch::nn::Sequential& model, std::int64_t step, Rank rank) {
  const at::Tensor images = formula({4, 8}, 1000 + step * 17 + rank * 5, 32);
  const at::Tensor targets = formula({4, 6}, 2000 + step * 13 + rank * 7, 64);
  return torch::mse_loss(model->forward(images), targets);
}

// Buckets of parameters in an order of names; `sizes` says how many parameters each bucket has.
inline std::vector<GradBucket> make_buckets(const std::map<std::string, at::Tensor>& parameters,
                                            const std::vector<std::string>& order,
                                            const std::vector<std::size_t>& sizes,
                                            ProcessGroup& group) {
  std::vector<GradBucket> buckets;
  std::size_t next = 0;
  for (const std::size_t size : sizes) {
    GradBucket::Contents contents;
    contents.index = buckets.size();
    contents.is_last = contents.index + 1 == sizes.size();
    std::int64_t numel = 0;
    for (std::size_t i = 0; i < size; ++i, ++next) {
      contents.names.push_back(order.at(next));
      contents.parameters.push_back(parameters.at(order.at(next)));
      numel += contents.parameters.back().numel();
    }
    contents.buffer = registered_zeros(group, numel, contents.parameters.front().scalar_type());
    std::int64_t offset = 0;
    for (const at::Tensor& parameter : contents.parameters) {
      contents.gradients.push_back(slot_of(contents.buffer, offset, parameter));
      offset += parameter.numel();
    }
    buckets.emplace_back(std::move(contents));
  }
  return buckets;
}

// Runs the hook on all buckets, as a reducer would at the end of backward.
inline void run_hook(HookRunner& runner, CommHook& hook, std::vector<GradBucket>& buckets) {
  static const std::string tag = "a bucket";
  for (GradBucket& bucket : buckets) runner.start(hook, bucket, tag);
  runner.finish();
}

class HookTraining {
 public:
  HookTraining(GroupPtr group, HookPtr hook, const std::vector<std::string>& order = {},
               const std::vector<std::size_t>& sizes = {})
      : group_(std::move(group)), hook_(std::move(hook)) {
    rebuild(order, sizes);
  }

  // Other buckets from now on.
  void rebuild(std::vector<std::string> order, std::vector<std::size_t> sizes) {
    std::map<std::string, at::Tensor> parameters;
    std::vector<std::string> definition;
    for (const auto& item : model->named_parameters()) {
      parameters[item.key()] = item.value();
      definition.push_back(item.key());
    }
    if (order.empty()) order = definition;
    if (sizes.empty()) sizes = {order.size()};
    buckets_ = make_buckets(parameters, order, sizes, *group_);
  }

  void step() {
    for (const auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    loss_of(model, steps++, group_->rank()).backward();
    for (GradBucket& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.gradients().size(); ++i) {
        copy_values(bucket.gradients()[i], bucket.parameters()[i].grad());
      }
    }
    run_hook(runner_, *hook_, buckets_);
    for (GradBucket& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.gradients().size(); ++i) {
        copy_values(bucket.parameters()[i].grad(), bucket.gradients()[i]);
      }
    }
    sgd.step();
    if (after_step) after_step();
  }
  void steps_until(std::int64_t end) {
    while (steps < end) step();
  }

  // All parameters in the order of definition.
  at::Tensor end() const {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : model->parameters()) parts.push_back(parameter.detach().view(-1));
    return at::cat(parts);
  }

  torch::nn::Sequential model = make_model();
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.25).momentum(0.5)};
  std::function<void()> after_step;
  std::int64_t steps = 0;

 private:
  GroupPtr group_;
  HookPtr hook_;
  std::vector<GradBucket> buckets_;
  HookRunner runner_;
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.is_contiguous() &&
         b.is_contiguous() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace ddp::test
