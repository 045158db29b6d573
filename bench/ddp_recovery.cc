// A training that records its events in a file; question_recovery.py kills its workers.
//
// bench-recovery [--elastic] EVENTS CHECKPOINT STEPS
//   --elastic   survives the rounds of its job, and prints the digest of its weights at the end;
//               otherwise it resumes from CHECKPOINT, a folder
// bench-recovery --start   prints the time at which it reaches its first line
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "common/base/exit_codes.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/ddp/state/run_elastic.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"

namespace ddp::bench {
namespace {

constexpr std::int64_t kSaveEvery = 10;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Appends a JSON line for each event in one write, so that workers can share the file.
class Events {
 public:
  explicit Events(const char* path)
      : file_(::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {}
  void note(const char* event, std::int64_t rank, Round round, std::int64_t step) const {
    const std::string line = fmt::format(
        R"({{"event": "{}", "time": {:.6f}, "pid": {}, "rank": {}, "round": {}, "step": {}}})"
        "\n",
        event, now(), ::getpid(), rank, round, step);
    (void)!::write(file_, line.data(), line.size());
  }

 private:
  int file_;
};

struct Training {
  torch::nn::Sequential model{torch::nn::Linear(64, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 8)};
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)};
  std::int64_t step = 0;
};

// The script of the peer does the same.
void train_step(DistributedDataParallel<torch::nn::SequentialImpl>& ddp, Training& training) {
  ddp.zero_grad();
  const at::Tensor output = ddp.forward(at::randn({32, 64}));
  at::mse_loss(output, at::randn({32, 8})).backward();
  training.optimizer.step();
  ++training.step;
}

void train_elastic(const Events& events, std::int64_t steps) {
  ElasticWorker worker;
  Training training;
  ElasticState state;
  state.add_module("model", *training.model);
  state.add_optimizer("optimizer", training.optimizer, *training.model);
  state.add_rng();
  state.add_value("step", training.step);
  run_elastic(worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel<torch::nn::SequentialImpl> ddp(training.model.ptr(), group);
    try {
      while (training.step < steps) {
        train_step(ddp, training);
        state.commit(training.step);
        events.note("step", group->rank(), group->round(), training.step);
      }
    } catch (const CollectiveError&) {
      events.note("error", group->rank(), group->round(), training.step);
      throw;
    }
  });
  fmt::print("weights {}\n", weights_sha256(*training.model));
}

void train_from_checkpoint(const Events& events, const char* folder, std::int64_t steps) {
  const auto channel = ControlChannel::from_environment({});
  const auto group = init_process_group();  // Under torchrun, too.
  Training training;
  Checkpointer checkpointer({folder, 2}, group, std::make_shared<CheckpointWriter>(channel.get()));
  checkpointer.add_module("model", *training.model);
  checkpointer.add_optimizer("optimizer", training.optimizer, *training.model);
  checkpointer.add_value(
      "step", [&] { return nlohmann::json(training.step); },
      [&](const nlohmann::json& saved) { training.step = saved.get<std::int64_t>(); });
  if (const auto prepared = checkpointer.prepare(); !prepared) {
    throw std::runtime_error(prepared.error().message);
  }
  checkpointer.load_latest().value();
  DistributedDataParallel<torch::nn::SequentialImpl> ddp(training.model.ptr(), group);
  while (training.step < steps) {
    train_step(ddp, training);
    channel->progress(training.step, 0, 0);
    events.note("step", group->rank(), group->round(), training.step);
    if (training.step % kSaveEvery == 0) checkpointer.save(training.step).value();
  }
}

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--start") {
    fmt::print("{:.6f}\n", now());
    return 0;
  }
  const bool elastic = first == "--elastic";
  if (argc != (elastic ? 5 : 4)) {
    fmt::print(stderr, "usage: bench-recovery [--elastic] EVENTS CHECKPOINT STEPS\n");
    return 2;
  }
  char** arguments = argv + (elastic ? 2 : 1);
  const Events events(arguments[0]);
  const char* rank = std::getenv("RANK");  // NOLINT(concurrency-mt-unsafe): one thread so far.
  const char* round = std::getenv("DDP_ROUND");  // NOLINT(concurrency-mt-unsafe): as above.
  events.note("start", rank == nullptr ? -1 : std::atoll(rank),
              round == nullptr ? 0 : std::atoll(round), -1);
  at::set_num_threads(1);
  at::manual_seed(1);
  const std::int64_t steps = std::atoll(arguments[2]);
  try {
    if (elastic) {
      train_elastic(events, steps);
    } else {
      train_from_checkpoint(events, arguments[1], steps);
    }
  } catch (const CollectiveError& error) {
    fmt::print(stderr, "bench-recovery: {}\n", error.what());
    return kExitCollectiveFailed;
  }
  return 0;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) { return ddp::bench::main(argc, argv); }
