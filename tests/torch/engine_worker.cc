// A training of ddp-train's mnist through ddp::initialize, for interface_bytes.py:
//
//   engine_worker CONFIG EPOCHS SUMMARY [CHECKPOINTS EVERY [STEP RANK MARK]...]
//
// Saves every EVERY updates, and on request. Before update STEP, rank RANK creates the file MARK
// and kills itself, unless MARK already exists.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "tests/torch/planned_kill.h"
#include "worker/data/sampler.h"
#include "worker/ddp/engine/engine.h"
#include "worker/runtime/freed_memory.h"
#include "worker/train/dataset.h"
#include "worker/train/models/model.h"

namespace ddp::test {
namespace {

constexpr std::uint64_t kSeed = 1;

struct Arguments {
  std::string config, summary, checkpoints;
  std::int64_t epochs = 0;
  std::int64_t every = 0;
  std::vector<PlannedKill> kills;
};

Arguments parse(const std::vector<std::string>& given) {
  Arguments arguments;
  arguments.config = given.at(0);
  arguments.epochs = std::stoll(given.at(1));
  arguments.summary = given.at(2);
  if (given.size() > 3) {
    arguments.checkpoints = given.at(3);
    arguments.every = std::stoll(given.at(4));
  }
  arguments.kills = planned_kills(given, 5);
  return arguments;
}

// As ddp-train: weights from the seed, then each rank's own numbers.
std::shared_ptr<train::Model> make_model(Rank rank) {
  at::manual_seed(kSeed);
  auto model = train::make_model({.name = "mnist"});
  at::manual_seed(kSeed + static_cast<std::uint64_t>(rank));
  return model;
}

void run(const Arguments& arguments) {
  keep_freed_memory();
  at::set_num_threads(1);
  at::globalContext().setDeterministicAlgorithms(true, false);
  const auto group = init_distributed();
  const Rank rank = group->rank();
  train::Options options;
  options.data = "synthetic";
  options.train_samples = 1536;
  options.test_samples = 0;
  const auto data = *train::make_datasets(options);
  const auto model = make_model(rank);
  auto engine = initialize(model, model->parameters(), arguments.config);
  DistributedSampler sampler({.dataset_size = data.train->size(),
                              .batch_size = engine.config().train_micro_batch_size_per_gpu,
                              .rank = rank,
                              .world_size = group->size(),
                              .seed = kSeed});
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  if (!arguments.checkpoints.empty()) {
    if (const auto place = engine.load_checkpoint(arguments.checkpoints)) {
      epoch = place->at("epoch").get<std::int64_t>();
      position = place->at("position").get<std::int64_t>();
      if (rank == 0) fmt::print("going on after update {}\n", engine.global_steps());
    }
  }
  train::Batch batch;
  for (; epoch < arguments.epochs; ++epoch, position = 0) {
    sampler.set_epoch(epoch, position);
    while (sampler.steps_left() > 0) {
      kill_if_due(arguments.kills, engine.global_steps() + 1, rank);
      data.train->fill(sampler.next_batch(), batch);
      engine.backward(model->loss(engine(batch.input), batch.target));
      engine.step();
      if (arguments.checkpoints.empty()) continue;
      using Asked = CheckpointRequests::Asked;
      const Asked asked = engine.checkpoint_requested();
      const bool due = arguments.every > 0 && engine.global_steps() % arguments.every == 0;
      if (asked == Asked::kNothing && !due) continue;
      engine.save_checkpoint(arguments.checkpoints,
                             {{"epoch", epoch}, {"position", sampler.position()}});
      if (asked != Asked::kCheckpointAndStop) continue;
      engine.wait_for_checkpoint();
      if (rank == 0)
        fmt::print("SIGTERM: the checkpoint of update {} is complete\n", engine.global_steps());
      std::fflush(stdout);
      return;
    }
    engine.model().broadcast_buffers();
  }
  engine.wait_for_checkpoint();
  if (rank != 0) return;
  std::ofstream(arguments.summary) << nlohmann::json{{"steps", engine.global_steps()},
                                                     {"weights_sha256", weights_sha256(*model)}};
}

}  // namespace
}  // namespace ddp::test

int main(int argc, char** argv) {
  try {
    ddp::test::run(ddp::test::parse({argv + 1, argv + argc}));
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_worker: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
