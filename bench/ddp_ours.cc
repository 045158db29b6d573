// bench-ddp: trains a model for a number of steps with this project, one thread a worker, and
// prints steps a second.
//
// usage: ddp-run ... bench-ddp MODE MODEL STEPS ROUNDS [BUCKET_MB]
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
#include "bench/program.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/distributed_optimizer.h"

namespace ddp::bench {
namespace {

struct Contest {
  std::shared_ptr<ProcessGroup> group;
  Task task;
  torch::optim::SGD optimizer;
  std::function<Measurement(const Step&)> measure;
  double bucket_mb = 0;  // 0: what is usual with the mode.
};

Measurement without_communication(Contest& contest) {
  const auto loss = [&] {
    contest.optimizer.zero_grad();
    return contest.task.loss();
  };
  return contest.measure({loss, [&] { contest.optimizer.step(); }});
}

Measurement during_backward(Contest& contest) {
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  if (contest.bucket_mb > 0) options.bucket_cap_mb = contest.bucket_mb;
  Task& task = contest.task;
  DistributedDataParallel<train::Model> model(task.model, contest.group, options);
  const auto loss = [&] {
    model.zero_grad(/*set_to_none=*/false);
    return task.model->loss(model(task.input), task.target);
  };
  return contest.measure({loss, [&] { contest.optimizer.step(); }});
}

Measurement at_the_step(Contest& contest) {
  broadcast_master_param(*contest.task.model, *contest.group);
  DistributedOptimizer optimizer(contest.optimizer, *contest.task.model, contest.group,
                                 {contest.bucket_mb, true});
  const auto loss = [&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    return contest.task.loss();
  };
  return contest.measure({loss, [&] { optimizer.step(); }});
}

void run(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    throw std::invalid_argument("usage: bench-ddp MODE MODEL STEPS ROUNDS [BUCKET_MB]");
  }
  at::set_num_threads(1);
  const std::string mode = argv[1];
  const int steps = std::stoi(argv[3]);
  const int rounds = std::stoi(argv[4]);
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  Task task = make_task(argv[2], group->rank());
  torch::optim::SGD optimizer(task.model->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.5));
  const auto measure = [&](const Step& step) {
    return measure_steps(
        rounds, steps, [&] { group->barrier()->wait(); }, step);
  };
  Contest contest{group, task, std::move(optimizer), measure, argc > 5 ? std::stod(argv[5]) : 0};
  Measurement measurement;
  if (mode == "local") {
    measurement = without_communication(contest);
  } else if (mode == "ddp") {
    measurement = during_backward(contest);
  } else if (mode == "step") {
    measurement = at_the_step(contest);
  } else {
    throw std::invalid_argument("MODE is local, ddp or step, not " + mode);
  }
  if (group->rank() == 0) print_measurement(mode, argv[2], measurement);
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-ddp", ddp::bench::run, argc, argv);
}
