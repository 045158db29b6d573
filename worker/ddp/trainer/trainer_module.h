#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/loop/training_place.h"
#include "worker/ddp/trainer/data_loader.h"

namespace ddp {

namespace trainer {
struct LogSink;
}

// The result of configure_optimizers().
struct ConfiguredOptimizer {
  template <std::derived_from<torch::optim::Optimizer> Optimizer>
  ConfiguredOptimizer(std::unique_ptr<Optimizer> with,  // NOLINT(google-explicit-constructor)
                      std::function<double(const TrainingPlace&)> lambda = {})
      : optimizer(std::move(with)), lr_lambda(std::move(lambda)) {}

  std::unique_ptr<torch::optim::Optimizer> optimizer;
  // The factor for every group's learning rate in the update that follows this place (LambdaLR). It
  // must depend on nothing else, so that a resumed training has the same rates. Empty: 1.
  std::function<double(const TrainingPlace&)> lr_lambda;
};

struct LogOptions {
  bool on_step = true;     // In training: to the logger, every log_every_n_steps updates.
  bool prog_bar = false;   // In the progress bar, too.
  double batch_size = -1;  // How many samples the value is a mean of; -1: the rows of the batch.
};

// A model and how it is trained: Lightning's LightningModule, for ddp::Trainer.
//
//   struct Net : ddp::TrainerModule {
//     at::Tensor training_step(const ddp::Batch& batch, std::int64_t) override {
//       const at::Tensor loss = torch::nll_loss(forward(batch[0]), batch[1]);
//       log("train_loss", loss);
//       return loss;
//     }
//     void validation_step(const ddp::Batch& batch, std::int64_t) override {
//       log("val_loss", torch::nll_loss(forward(batch[0]), batch[1]));
//     }
//     ddp::ConfiguredOptimizer configure_optimizers() override {
//       return std::make_unique<torch::optim::SGD>(parameters(), 0.1);
//     }
//     ...
//
// All are called by the training thread, training_step in training mode, the others in evaluation
// mode without gradients, on batches that lie on the rank's device. Steps of evaluations must not
// be collective: in the last batch some ranks may have nothing.
class TrainerModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // The loss: a mean over the batch. batch_index counts the rank's batches of the epoch.
  virtual at::Tensor training_step(const Batch& batch, std::int64_t batch_index) = 0;
  virtual void validation_step(const Batch& batch, std::int64_t batch_index);
  // validation_step unless it is overridden.
  virtual void test_step(const Batch& batch, std::int64_t batch_index);
  // A row for each sample.
  virtual at::Tensor predict_step(const Batch& batch, std::int64_t batch_index);
  // Over parameters() or some of them; called at the beginning of fit, when they are on their
  // device.
  virtual ConfiguredOptimizer configure_optimizers() = 0;
  // A module of the same structure, whose values do not matter. Only strategy "dp" needs it.
  virtual std::shared_ptr<TrainerModule> new_replica() const;

  // Call it within a step: the metric is the value's mean over batches and ranks. In a validation
  // or test the mean is over all of it. In training it is over one update in log_every_n_steps for
  // the logger ("loss"), and over the epoch ("loss_epoch"). Values that are not finite are kept.
  // Throws std::logic_error outside of a step.
  void log(const std::string& name, double value, const LogOptions& options = {});
  void log(const std::string& name, const at::Tensor& value, const LogOptions& options = {});

  // Where log() goes; the Trainer's.
  void log_to(trainer::LogSink* sink) { sink_ = sink; }

 private:
  trainer::LogSink* sink_ = nullptr;
};

}  // namespace ddp
