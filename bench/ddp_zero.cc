// bench-zero: trains a model with AdamW, its state on every worker or divided among them.
//
// usage: ddp-run ... bench-zero MODES MODEL STEPS ROUNDS
// MODES, separated by commas, take turns: ddp (every worker has the whole state), zero
// (ZeroRedundancyOptimizer), overlap (the same with overlap_with_forward) or bound (the limit if
// communication cost nothing: forward, backward, and the update of a half). MODEL: see ddp_task.h.
// Prints what bench-ddp prints, and for rank 0 the bytes of the optimizer's tensors and the peak of
// resident memory (which belongs to one mode only if one mode runs).
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include "bench/ddp_task.h"
#include "bench/program.h"
#include "bench/samples.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"
#include "worker/runtime/freed_memory.h"

namespace ddp::bench {
namespace {

// The first half of each tensor, as new tensors that share its memory.
std::vector<at::Tensor> halves_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> halves;
  for (const at::Tensor& tensor : tensors) {
    halves.push_back(tensor.detach().flatten().narrow(0, 0, (tensor.numel() + 1) / 2));
  }
  return halves;
}

struct Contest {
  Contest(const std::shared_ptr<ProcessGroup>& group, const std::string& model_name,
          const std::string& mode)
      : task(make_task(model_name, group->rank())),
        is_bound(mode == "bound"),
        halves(halves_of(task.model->parameters())),
        optimizer(is_bound ? halves : task.model->parameters(), torch::optim::AdamWOptions(1e-3)),
        model(task.model, group, options()) {
    if (is_bound) {
      no_sync = std::unique_ptr<NoSync>(new NoSync(model.no_sync()));
    } else if (mode != "ddp") {
      zero = std::make_unique<ZeroRedundancyOptimizer>(
          optimizer, model, ZeroOptions{.overlap_with_forward = mode == "overlap"});
    }
  }
  static DistributedDataParallelOptions options() {
    DistributedDataParallelOptions chosen;
    chosen.gradient_as_bucket_view = true;
    return chosen;
  }
  std::size_t state_bytes() {
    std::size_t bytes = 0;
    for (const auto& [key, state] : optimizer.state()) {
      const auto& of = static_cast<const torch::optim::AdamWParamState&>(*state);
      bytes += of.exp_avg().nbytes() + of.exp_avg_sq().nbytes();
    }
    return bytes;
  }

  Task task;
  bool is_bound;
  std::vector<at::Tensor> halves;
  torch::optim::AdamW optimizer;
  DistributedDataParallel<train::Model> model;
  std::unique_ptr<NoSync> no_sync;
  std::unique_ptr<ZeroRedundancyOptimizer> zero;
};

Step step_of(const std::shared_ptr<Contest>& contest) {
  const auto loss = [contest] {
    if (contest->zero) {
      contest->zero->zero_grad(/*set_to_none=*/false);
    } else {
      contest->model.zero_grad(/*set_to_none=*/false);
    }
    return contest->task.model->loss(contest->model(contest->task.input), contest->task.target);
  };
  const auto update = [contest] {
    if (contest->zero) {
      contest->zero->step();
    } else if (contest->is_bound) {
      const std::vector<at::Tensor> parameters = contest->task.model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        contest->halves[i].mutable_grad() = halves_of({parameters[i].grad()})[0];
      }
      contest->optimizer.step();
    } else {
      contest->optimizer.step();
    }
  };
  return {loss, update};
}

// A value of /proc/self/status, in KiB.
long status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(line.find(':') + 1));
  }
  return 0;
}

void run(int argc, char** argv) {
  if (argc != 5) throw std::invalid_argument("usage: bench-zero MODES MODEL STEPS ROUNDS");
  keep_freed_memory();
  at::set_num_threads(1);
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  const std::vector<std::string> modes = parse_names(argv[1]);
  std::vector<std::shared_ptr<Contest>> contests;
  std::vector<Step> steps;
  for (const std::string& mode : modes) {
    if (mode != "ddp" && mode != "zero" && mode != "overlap" && mode != "bound")
      throw std::invalid_argument("mode " + mode + ": expected ddp, zero, overlap or bound");
    contests.push_back(std::make_shared<Contest>(group, argv[2], mode));
    steps.push_back(step_of(contests.back()));
  }
  const std::vector<Measurement> measurements = measure_steps(
      std::stoi(argv[4]), std::stoi(argv[3]), [&] { group->barrier()->wait(); }, steps);
  for (std::size_t index = 0; index < modes.size() && group->rank() == 0; ++index) {
    print_measurement(modes[index], argv[2], measurements[index]);
    fmt::print("{{\"memory\": \"{}\", \"state_bytes\": {}, \"peak_kib\": {}}}\n", modes[index],
               contests[index]->state_bytes(), status_kib("VmHWM"));
    std::fflush(stdout);
  }
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-zero", ddp::bench::run, argc, argv);
}
