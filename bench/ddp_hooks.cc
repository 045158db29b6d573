// bench-hooks: measures what hooks on parameters add to a backward with many very small parameters.
//
// usage: [ddp-run ...] bench-hooks [PARAMETERS [ROUNDS]]
// By default 2000 parameters of four elements, 30 rounds. In a round each contender, in turn, does
// five backwards through a model of its own; only backward() is timed, and workers begin together.
// Prints a JSON line: for each contender the median time of a backward in each round, in
// nanoseconds per parameter, and as "NAME cpu" the processor time of all threads of the process:
//   bare   the module alone
//   met    the same, then the workers wait for each other: the least that any communication costs
//          when they are not equally fast at every moment
//   idle   a hook on every parameter that does nothing: LibTorch's own share
//   views  DistributedDataParallel, gradients are views of the buckets
//   copies DistributedDataParallel, gradients are copied into the buckets and back
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "bench/program.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/tensors/compat.h"

namespace ddp::bench {
namespace {

constexpr int kBackwards = 5;
constexpr int kWarmRounds = 4;

struct Many : torch::nn::Module {
  explicit Many(int count) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({4})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> terms;
    terms.reserve(weights.size());
    for (const at::Tensor& weight : weights) terms.push_back(weight.dot(x));
    return at::stack(terms).sum();
  }
  std::vector<at::Tensor> weights;
};

struct Contender {
  std::string name;
  std::function<at::Tensor()> loss;     // After the gradients were set to zero.
  std::function<void()> after = [] {};  // The backward; timed with it.
  std::vector<double> rounds = {};      // Nanoseconds for a parameter.
  std::vector<double> cpu_rounds = {};
};

void zero_in_place(const Many& module) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& weight : module.weights) {
    if (weight.grad().defined()) weight.mutable_grad().zero_();
  }
}

Contender bare(std::string name, int count, const at::Tensor& x, bool with_hooks = false) {
  auto module = std::make_shared<Many>(count);
  std::vector<compat::NodePtr> nodes;
  for (const at::Tensor& weight : module->weights) {
    if (!with_hooks) break;
    nodes.push_back(torch::autograd::impl::grad_accumulator(weight));
    nodes.back()->add_post_hook(
        compat::make_post_hook([](const auto& outputs, const auto&) { return outputs; }));
  }
  return {std::move(name), [module, nodes, x] {
            zero_in_place(*module);
            return module->forward(x);
          }};
}

Contender wrapped(int count, const at::Tensor& x, const std::shared_ptr<ProcessGroup>& group,
                  bool views) {
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = views;
  auto model = std::make_shared<DistributedDataParallel<Many>>(std::make_shared<Many>(count), group,
                                                               options);
  return {views ? "views" : "copies", [model, x] {
            model->zero_grad(/*set_to_none=*/false);
            return model->forward(x);
          }};
}

double cpu_nanoseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void meet(ProcessGroup& group) {
  group.barrier({.timeout = {}, .tag = {}, .synchronous = true})->wait();
}

void measure(Contender& contender, int count, ProcessGroup& group) {
  std::vector<double> times;
  std::vector<double> cpu_times;
  for (int i = 0; i < kBackwards; ++i) {
    const at::Tensor loss = contender.loss();
    meet(group);
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = cpu_nanoseconds();
    loss.backward();
    contender.after();
    cpu_times.push_back((cpu_nanoseconds() - cpu_begin) / count);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count() / count);
  }
  contender.rounds.push_back(median(std::move(times)));
  contender.cpu_rounds.push_back(median(std::move(cpu_times)));
}

void print_rounds(const std::string& name, const std::vector<double>& rounds) {
  std::printf(", \"%s\": [", name.c_str());
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    std::printf("%s%.1f", i == 0 ? "" : ", ", rounds[i]);
  }
  std::printf("]");
}

void run(int argc, char** argv) {
  at::set_num_threads(1);
  const int count = argc > 1 ? std::stoi(argv[1]) : 2000;
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 30;
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  const at::Tensor x = torch::ones({4});
  std::vector<Contender> contenders;
  contenders.push_back(bare("bare", count, x));
  contenders.push_back(bare("met", count, x));
  contenders.back().after = [group] { meet(*group); };
  contenders.push_back(bare("idle", count, x, /*with_hooks=*/true));
  contenders.push_back(wrapped(count, x, group, true));
  contenders.push_back(wrapped(count, x, group, false));
  for (int round = 0; round < kWarmRounds + rounds; ++round) {
    if (round == kWarmRounds) {
      for (Contender& contender : contenders) {
        contender.rounds.clear();
        contender.cpu_rounds.clear();
      }
    }
    for (Contender& contender : contenders) measure(contender, count, *group);
  }
  if (group->rank() == 0) {
    std::printf("{\"parameters\": %d", count);
    for (const Contender& contender : contenders) {
      print_rounds(contender.name, contender.rounds);
      print_rounds(contender.name + " cpu", contender.cpu_rounds);
    }
    std::printf("}\n");
  }
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-hooks", ddp::bench::run, argc, argv);
}
