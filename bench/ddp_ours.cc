// bench-ddp: trains a model for a number of steps with this project, one thread a worker, and
// prints steps a second.
//
// usage: ddp-run ... bench-ddp MODES MODEL STEPS ROUNDS [BUCKET_MB]
// MODES, separated by commas, take turns: local (no communication, every worker for itself),
// barrier (the same, but the workers wait for each other in each step), ddp, or step. MODEL: see
// ddp_task.h.
// Environment: SET_TO_NONE (ddp_task.h) for all modes; KEEP_FREED_MEMORY=1 for keep_freed_memory(),
// as ddp-train does.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include "bench/ddp_task.h"
#include "bench/program.h"
#include "bench/samples.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/runtime/freed_memory.h"

namespace ddp::bench {
namespace {

// The model of one mode and what trains it; every mode has a model of its own.
struct Contest {
  std::shared_ptr<ProcessGroup> group;
  Task task;
  double bucket_mb = 0;  // 0: the default of the mode.
  bool set_to_none = is_asked_for(kSetToNone);
  torch::optim::SGD optimizer{task.model->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.5)};
};

Step without_communication(const std::shared_ptr<Contest>& contest) {
  const auto loss = [contest] {
    contest->task.model->zero_grad(contest->set_to_none);
    return contest->task.loss();
  };
  return {loss, [contest] { contest->optimizer.step(); }};
}

Step without_data(const std::shared_ptr<Contest>& contest) {
  Step step = without_communication(contest);
  step.update = [contest] {
    contest->group->barrier()->wait();
    contest->optimizer.step();
  };
  return step;
}

Step during_backward(const std::shared_ptr<Contest>& contest) {
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  if (contest->bucket_mb > 0) options.bucket_cap_mb = contest->bucket_mb;
  const auto model = std::make_shared<DistributedDataParallel<train::Model>>(
      contest->task.model, contest->group, options);
  const auto loss = [contest, model] {
    const Task& task = contest->task;
    model->zero_grad(contest->set_to_none);
    return task.model->loss((*model)(task.input), task.target);
  };
  return {loss, [contest] { contest->optimizer.step(); }};
}

Step at_the_step(const std::shared_ptr<Contest>& contest) {
  broadcast_master_param(*contest->task.model, *contest->group);
  const auto optimizer = std::make_shared<DistributedOptimizer>(
      contest->optimizer, *contest->task.model, contest->group,
      DistributedOptimizerOptions{contest->bucket_mb, true});
  const auto loss = [contest, optimizer] {
    optimizer->zero_grad(contest->set_to_none);
    return contest->task.loss();
  };
  return {loss, [optimizer] { optimizer->step(); }};
}

Step step_of(const std::string& mode, const std::shared_ptr<Contest>& contest) {
  if (mode == "local") return without_communication(contest);
  if (mode == "barrier") return without_data(contest);
  if (mode == "ddp") return during_backward(contest);
  if (mode == "step") return at_the_step(contest);
  throw std::invalid_argument("mode " + mode + ": expected local, barrier, ddp or step");
}

void run(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    throw std::invalid_argument("usage: bench-ddp MODES MODEL STEPS ROUNDS [BUCKET_MB]");
  }
  if (is_asked_for("KEEP_FREED_MEMORY")) keep_freed_memory();
  at::set_num_threads(1);
  const std::vector<std::string> modes = parse_names(argv[1]);
  const int steps = std::stoi(argv[3]);
  const int rounds = std::stoi(argv[4]);
  const double bucket_mb = argc > 5 ? std::stod(argv[5]) : 0;
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  std::vector<Step> contenders;
  for (const std::string& mode : modes) {
    const auto contest =
        std::make_shared<Contest>(Contest{group, make_task(argv[2], group->rank()), bucket_mb});
    contenders.push_back(step_of(mode, contest));
  }
  const std::vector<Measurement> measurements = measure_steps(
      rounds, steps, [&] { group->barrier()->wait(); }, contenders);
  for (std::size_t index = 0; index < modes.size() && group->rank() == 0; ++index) {
    print_measurement(modes[index], argv[2], measurements[index]);
  }
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-ddp", ddp::bench::run, argc, argv);
}
