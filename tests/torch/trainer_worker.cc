// A training of ddp-train's mnist through ddp::Trainer, for interface_bytes.py:
//
//   trainer_worker STRATEGY EPOCHS BATCH RATE MOMENTUM SUMMARY [FOLDER EVERY [STEP RANK MARK]...]
//
// Saves every EVERY updates. Says "process PID" whenever training begins in a round. Before update
// STEP, rank RANK creates the file MARK and kills itself, unless MARK already exists.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include "tests/torch/planned_kill.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/trainer/trainer.h"
#include "worker/runtime/freed_memory.h"
#include "worker/train/dataset.h"
#include "worker/train/models/model.h"

namespace ddp::test {
namespace {

constexpr std::uint64_t kSeed = 1;

// ddp-train's data as the Trainer takes them.
class Digits final : public Dataset {
 public:
  explicit Digits(std::unique_ptr<train::Dataset> data) : data_(std::move(data)) {}
  std::int64_t size() const override { return data_->size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    train::Batch batch;
    data_->fill(indices, batch);
    return {batch.input, batch.target};
  }

 private:
  std::unique_ptr<train::Dataset> data_;
};

struct Arguments {
  std::string strategy, summary, folder;
  std::int64_t epochs = 0, batch = 0, every = 0;
  double rate = 0, momentum = 0;
  std::vector<PlannedKill> kills;
};

Arguments parse(const std::vector<std::string>& given) {
  Arguments arguments;
  arguments.strategy = given.at(0);
  arguments.epochs = std::stoll(given.at(1));
  arguments.batch = std::stoll(given.at(2));
  arguments.rate = std::stod(given.at(3));
  arguments.momentum = std::stod(given.at(4));
  arguments.summary = given.at(5);
  if (given.size() > 6) {
    arguments.folder = given.at(6);
    arguments.every = std::stoll(given.at(7));
  }
  arguments.kills = planned_kills(given, 8);
  return arguments;
}

struct Mnist final : TrainerModule {
  Mnist(const Arguments& given, int world) : arguments(given), workers(world) {
    at::manual_seed(kSeed);
    model = register_module("model", train::make_model({.name = "mnist"}));
  }
  at::Tensor training_step(const Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor loss = model->loss(model->forward(batch[0]), batch[1]);
    log("loss", loss);
    return loss;
  }
  ConfiguredOptimizer configure_optimizers() override {
    // ddp-train multiplies the rate by the number of workers.
    return std::make_unique<torch::optim::SGD>(
        parameters(),
        torch::optim::SGDOptions(arguments.rate * workers).momentum(arguments.momentum));
  }

  const Arguments& arguments;
  int workers;
  std::shared_ptr<train::Model> model;
};

// Says how far the training is. Kills itself before the update that is due.
struct Killer final : Callback {
  explicit Killer(const std::vector<PlannedKill>& planned) : kills(planned) {}
  std::string name() const override { return "Killer"; }
  void on_fit_start(Trainer& trainer, TrainerModule& /*module*/) override {
    fmt::print(stderr, "process {}\n", ::getpid());
    look(trainer);
  }
  void on_train_batch_end(Trainer& trainer, TrainerModule& /*module*/) override { look(trainer); }
  void look(Trainer& trainer) const {
    if (trainer.group()->rank() == 0) fmt::print(stderr, "step {}\n", trainer.place().step);
    kill_if_due(kills, trainer.place().step + 1, trainer.group()->rank());
  }
  const std::vector<PlannedKill>& kills;
};

void run(const Arguments& arguments) {
  keep_freed_memory();
  at::set_num_threads(1);
  Trainer trainer({.strategy = arguments.strategy,
                   .max_epochs = arguments.epochs,
                   .callbacks = {std::make_shared<Killer>(arguments.kills)},
                   .enable_progress_bar = false,
                   .default_root_dir = arguments.folder,
                   .checkpoint_every_n_steps = arguments.every,
                   .deterministic = true,
                   .seed = kSeed});
  train::Options options;
  options.data = "synthetic";
  options.train_samples = 1536;
  options.test_samples = 0;
  const auto module = std::make_shared<Mnist>(arguments, trainer.group()->size());
  trainer.fit(module,
              {.dataset = std::make_shared<Digits>(std::move(train::make_datasets(options)->train)),
               .batch_size = arguments.batch,
               .shuffle = true,
               .seed = kSeed});
  if (trainer.group()->rank() != 0) return;
  std::ofstream(arguments.summary) << nlohmann::json{
      {"steps", trainer.place().step}, {"weights_sha256", weights_sha256(*module->model)}};
}

}  // namespace
}  // namespace ddp::test

int main(int argc, char** argv) {
  try {
    ddp::test::run(ddp::test::parse({argv + 1, argv + argc}));
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "trainer_worker: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
