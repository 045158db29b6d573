// Trains by the Trainer, resumes by itself, and starts its own workers:
//
//   ./trainer run1
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/optim/adam.h>

#include "net.h"

struct Regression : ddp::TrainerModule {
  at::Tensor training_step(const ddp::Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor loss = loss_of(net->forward(batch[0]), batch[0]);
    log("train_loss", loss);
    return loss;
  }
  void validation_step(const ddp::Batch& batch, std::int64_t /*index*/) override {
    log("val_loss", loss_of(net->forward(batch[0]), batch[0]));
  }
  ddp::ConfiguredOptimizer configure_optimizers() override {
    return std::make_unique<torch::optim::Adam>(parameters(), torch::optim::AdamOptions(0.01));
  }

  std::shared_ptr<Net> net = register_module("net", std::make_shared<Net>());
};

int main(int argc, char** argv) {
  if (argc != 2) return std::printf("usage: trainer FOLDER\n"), 2;
  const auto best =
      std::make_shared<ddp::ModelCheckpoint>(ddp::ModelCheckpointOptions{.monitor = "val_loss"});
  const auto stopping = std::make_shared<ddp::EarlyStopping>(
      ddp::EarlyStoppingOptions{.monitor = "val_loss", .patience = 5});
  ddp::Trainer trainer({.devices = 2,
                        .max_epochs = 20,
                        .callbacks = {best, stopping},
                        .log_every_n_steps = 32,
                        .default_root_dir = argv[1]});
  at::manual_seed(1);
  at::set_num_threads(1);
  const auto samples_of = [](int seed, int count) {
    return std::make_shared<ddp::TensorDataset>(ddp::Batch{inputs_of(0, seed, count)});
  };
  const ddp::DataLoader train = {.dataset = samples_of(1, 1000), .batch_size = 16, .shuffle = true};
  const ddp::DataLoader valid = {.dataset = samples_of(2, 100), .batch_size = 50};
  const auto module = std::make_shared<Regression>();
  trainer.fit(module, train, valid);
  const double score = trainer.test(module, valid, "best").at("val_loss");
  std::printf("rank %d: best %.4f, weights %s\n", trainer.group()->rank(), score,
              ddp::weights_sha256(*module).c_str());
}
