#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/trainer/trainer.h"

// A small training for tests of ddp::Trainer.
namespace ddp::test::trainer_sample {

inline constexpr std::int64_t kSamples = 46;
inline constexpr std::int64_t kBatch = 3;
inline constexpr std::uint64_t kSeed = 5;

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();  // mse_loss knows no bfloat16.
}

// A sample is 6 numbers and the target for them.
inline Batch data(std::int64_t samples = kSamples, std::uint64_t seed = 1) {
  const at::Tensor input = random_tensor({samples, 6}, seed);
  return {input, input.narrow(1, 0, 4).sin()};
}

inline DataLoader loader(std::int64_t samples = kSamples, bool drop_last = false,
                         std::uint64_t seed = 1) {
  return {.dataset = std::make_shared<TensorDataset>(data(samples, seed)),
          .batch_size = kBatch,
          .shuffle = true,
          .drop_last = drop_last,
          .seed = kSeed};
}

inline double factor_at(const TrainingPlace& place) {
  return 1.0 / (1.0 + 0.1 * static_cast<double>(place.step)) + static_cast<double>(place.epoch);
}

struct Net : TrainerModule {
  Net()
      : inner(
            register_module("inner", std::make_shared<Mlp>(std::vector<std::int64_t>{6, 17, 4}))) {
    fill(*this, 3);
  }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    indices.push_back(index);
    const at::Tensor loss = loss_of(inner->forward(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  void validation_step(const Batch& batch, std::int64_t /*index*/) override {
    log("val_loss", loss_of(inner->forward(batch[0]), batch[1]));
    log("val_rows", static_cast<double>(batch[0].size(0)));
    ++validations;
  }
  at::Tensor predict_step(const Batch& batch, std::int64_t /*index*/) override {
    return inner->forward(batch[0]);
  }
  ConfiguredOptimizer configure_optimizers() override {
    return {std::make_unique<torch::optim::AdamW>(
                parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1)),
            factor_at};
  }
  std::shared_ptr<TrainerModule> new_replica() const override { return std::make_shared<Net>(); }

  std::shared_ptr<Mlp> inner;
  int validations = 0;
  std::vector<std::int64_t> indices;
};

inline TrainerOptions options_for(const GroupPtr& group, const std::string& strategy = "ddp") {
  TrainerOptions options;
  options.group = group;
  options.strategy = strategy;
  options.max_epochs = 3;
  options.enable_progress_bar = false;
  options.log_every_n_steps = 2;
  return options;
}

// What a call says when it throws; empty if it does not.
inline std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// What a Trainer of one rank says; the group is released by it, so each has its own.
inline std::string complaint_of(
    const std::function<void(Trainer&)>& call,
    const std::function<void(TrainerOptions&)>& change = [](auto&) {}) {
  std::string text;
  run_ranks({1}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    change(options);
    Trainer trainer(options);
    text = complaint([&] { call(trainer); });
  });
  return text;
}

}  // namespace ddp::test::trainer_sample
