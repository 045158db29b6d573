// A training of ddp-train's mnist through ddp::initialize, for interface_bytes.py:
//
//   engine_worker CONFIG EPOCHS SUMMARY [CHECKPOINTS|elastic EVERY [STEP RANK MARK]...]
//
// Saves every EVERY updates, and on request; "elastic": commits in memory every EVERY updates, and
// goes on from there in the same process. Says "process PID" whenever training begins in a round.
// Before update STEP, rank RANK creates the file MARK and kills itself, unless MARK already exists.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "tests/torch/planned_kill.h"
#include "worker/data/sampler.h"
#include "worker/ddp/engine/elastic_engine.h"
#include "worker/ddp/engine/engine.h"
#include "worker/ddp/state/checkpointer.h"
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

train::Datasets make_data() {
  train::Options options;
  options.data = "synthetic";
  options.train_samples = 1536;
  options.test_samples = 0;
  return *train::make_datasets(options);
}

// Where the training is in its data.
struct Place {
  std::int64_t epoch = 0, position = 0;
};

// Calls after_update() after each update, until it returns false. Returns whether it never did.
bool train(Engine<train::Model>& engine, const Arguments& arguments, Place& place,
           const std::function<bool()>& after_update) {
  const train::Datasets data = make_data();
  const Rank rank = engine.group().rank();
  fmt::print(stderr, "process {}\n", ::getpid());
  DistributedSampler sampler({.dataset_size = data.train->size(),
                              .batch_size = engine.config().train_micro_batch_size_per_gpu,
                              .rank = rank,
                              .world_size = engine.group().size(),
                              .seed = kSeed});
  train::Batch batch;
  for (; place.epoch < arguments.epochs; ++place.epoch, place.position = 0) {
    sampler.set_epoch(place.epoch, place.position);
    while (sampler.steps_left() > 0) {
      kill_if_due(arguments.kills, engine.global_steps() + 1, rank);
      data.train->fill(sampler.next_batch(), batch);
      engine.backward(engine.module().loss(engine(batch.input), batch.target));
      engine.step();
      place.position = sampler.position();
      if (!after_update()) return false;
    }
    engine.model().broadcast_buffers();
  }
  return true;
}

void summarize(Engine<train::Model>& engine, const Arguments& arguments) {
  if (engine.group().rank() != 0) return;
  std::ofstream(arguments.summary) << nlohmann::json{
      {"steps", engine.global_steps()}, {"weights_sha256", weights_sha256(engine.module())}};
}

void run_elastic(const Arguments& arguments) {
  const auto model = make_model(0);
  Place place;
  ElasticState state;
  state.set_commit_pace({.every = arguments.every});
  state.add_value("epoch", place.epoch);
  state.add_value("position", place.position);
  ddp::run_elastic<train::Model>(state, model, model->parameters(), arguments.config,
                                 [&](Engine<train::Model>& engine) {
                                   train(engine, arguments, place, [&] {
                                     state.commit_if_due(engine.global_steps());
                                     return true;
                                   });
                                   summarize(engine, arguments);
                                 });
}

void run(const Arguments& arguments) {
  const auto group = init_distributed();
  const auto model = make_model(group->rank());
  auto engine = initialize(model, model->parameters(), arguments.config);
  Place place;
  if (!arguments.checkpoints.empty()) {
    if (const auto saved = engine.load_checkpoint(arguments.checkpoints)) {
      place = {saved->at("epoch").get<std::int64_t>(), saved->at("position").get<std::int64_t>()};
      if (group->rank() == 0) fmt::print("going on after update {}\n", engine.global_steps());
    }
  }
  const bool finished = train(engine, arguments, place, [&] {
    if (arguments.checkpoints.empty()) return true;
    using Asked = CheckpointRequests::Asked;
    const Asked asked = engine.checkpoint_requested();
    const bool due = arguments.every > 0 && engine.global_steps() % arguments.every == 0;
    if (asked == Asked::kNothing && !due) return true;
    engine.save_checkpoint(arguments.checkpoints,
                           {{"epoch", place.epoch}, {"position", place.position}});
    return asked != Asked::kCheckpointAndStop;
  });
  engine.wait_for_checkpoint();
  if (finished) return summarize(engine, arguments);
  if (group->rank() == 0) {
    fmt::print("SIGTERM: the checkpoint of update {} is complete\n", engine.global_steps());
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace ddp::test

int main(int argc, char** argv) {
  try {
    ddp::keep_freed_memory();
    at::set_num_threads(1);
    at::globalContext().setDeterministicAlgorithms(true, false);
    const auto arguments = ddp::test::parse({argv + 1, argv + argc});
    if (arguments.checkpoints == "elastic") {
      ddp::test::run_elastic(arguments);
    } else {
      ddp::test::run(arguments);
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_worker: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
