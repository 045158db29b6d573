// bench-dp: one process trains a model on the batches of two workers together (ddp_task.h).
//
// usage: bench-dp MODES MODEL STEPS ROUNDS
// MODES, separated by commas, take turns: dp (DataParallel, two replicas on a thread each) or whole
// (the module itself, with two LibTorch threads). Prints what bench-ddp prints.
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include "bench/ddp_task.h"
#include "bench/program.h"
#include "bench/samples.h"
#include "worker/ddp/modules/data_parallel.h"
#include "worker/runtime/freed_memory.h"

namespace ddp::bench {
namespace {

constexpr int kWorkers = 2;

struct Contest {
  Contest(const std::string& model_name, bool replicated)
      : task(make_task(model_name, 0)),
        optimizer(task.model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5)) {
    for (int rank = 1; rank < kWorkers; ++rank) {
      const Task other = make_task(model_name, rank);
      task.input = at::cat({task.input, other.input});
      task.target = at::cat({task.target, other.target});
    }
    if (!replicated) return;
    const auto replica = [model_name] { return make_task(model_name, 0).model; };
    model = std::make_unique<DataParallel<train::Model>>(task.model, replica);
  }

  Task task;
  torch::optim::SGD optimizer;
  std::unique_ptr<DataParallel<train::Model>> model;
};

Step step_of(const std::shared_ptr<Contest>& contest) {
  const auto loss = [contest] {
    const Task& task = contest->task;
    contest->optimizer.zero_grad();
    // Threads of each operation: one in a replica, all in the whole module.
    at::set_num_threads(contest->model ? 1 : kWorkers);
    return contest->model ? task.model->loss((*contest->model)(task.input), task.target)
                          : task.loss();
  };
  return {loss, [contest] { contest->optimizer.step(); }};
}

void run(int argc, char** argv) {
  if (argc != 5) throw std::invalid_argument("usage: bench-dp MODES MODEL STEPS ROUNDS");
  keep_freed_memory();
  at::set_num_threads(1);
  std::vector<Step> steps;
  const std::vector<std::string> modes = parse_names(argv[1]);
  for (const std::string& mode : modes) {
    if (mode != "dp" && mode != "whole")
      throw std::invalid_argument("mode " + mode + ": expected dp or whole");
    steps.push_back(step_of(std::make_shared<Contest>(argv[2], mode == "dp")));
  }
  const std::vector<Measurement> measurements = measure_steps(
      std::stoi(argv[4]), std::stoi(argv[3]), [] {}, steps);
  for (std::size_t index = 0; index < modes.size(); ++index)
    print_measurement(modes[index], argv[2], measurements[index]);
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-dp", ddp::bench::run, argc, argv);
}
