// bench-ddp: trains a model for a number of steps with this project, one thread a worker, and
// prints steps a second.
//
// usage: ddp-run ... bench-ddp MODE MODEL STEPS ROUNDS
// MODE: local (no communication, every worker for itself), ddp, or step. MODEL: see ddp_task.h.
// Gradients are the buckets and are set to zero in place, as with the peers.
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include "bench/ddp_task.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/distributed_optimizer.h"

namespace ddp::bench {
namespace {

struct Contest {
  std::shared_ptr<ProcessGroup> group;
  Task task;
  torch::optim::SGD optimizer;
  std::function<std::vector<double>(const std::function<void()>&)> measure;
  at::Tensor loss;
};

std::vector<double> without_communication(Contest& contest) {
  return contest.measure([&] {
    contest.optimizer.zero_grad();
    contest.loss = contest.task.loss();
    contest.loss.backward();
    contest.optimizer.step();
  });
}

std::vector<double> during_backward(Contest& contest) {
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  Task& task = contest.task;
  DistributedDataParallel<train::Model> model(task.model, contest.group, options);
  return contest.measure([&] {
    model.zero_grad(/*set_to_none=*/false);
    contest.loss = task.model->loss(model(task.input), task.target);
    contest.loss.backward();
    contest.optimizer.step();
  });
}

std::vector<double> at_the_step(Contest& contest) {
  broadcast_master_param(*contest.task.model, *contest.group);
  DistributedOptimizer optimizer(contest.optimizer, *contest.task.model, contest.group, {0, true});
  return contest.measure([&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    contest.loss = contest.task.loss();
    contest.loss.backward();
    optimizer.step();
  });
}

void run(int argc, char** argv) {
  if (argc != 5) throw std::invalid_argument("usage: bench-ddp MODE MODEL STEPS ROUNDS");
  at::set_num_threads(1);
  const std::string mode = argv[1];
  const int steps = std::stoi(argv[3]);
  const int rounds = std::stoi(argv[4]);
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  Task task = make_task(argv[2], group->rank());
  torch::optim::SGD optimizer(task.model->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.5));
  const auto measure = [&](const std::function<void()>& step) {
    return measure_steps(
        rounds, steps, [&] { group->barrier()->wait(); }, step);
  };
  Contest contest{group, task, std::move(optimizer), measure, {}};
  std::vector<double> rates;
  if (mode == "local") {
    rates = without_communication(contest);
  } else if (mode == "ddp") {
    rates = during_backward(contest);
  } else if (mode == "step") {
    rates = at_the_step(contest);
  } else {
    throw std::invalid_argument("MODE is local, ddp or step, not " + mode);
  }
  if (group->rank() == 0) print_rates(mode, argv[2], rates, contest.loss.item<double>());
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    ddp::bench::run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-ddp: %s\n", error.what());
    return 1;
  }
}
