#include "bench/ddp_task.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include "worker/train/models/mnist.h"
#include "worker/train/models/resnet.h"

namespace ddp::bench {
namespace {

class Mlp final : public train::Model {
 public:
  Mlp() {
    for (int layer = 0; layer < 8; ++layer) {
      layers_.push_back(
          register_module("layer" + std::to_string(layer), torch::nn::Linear(1024, 1024)));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (torch::nn::Linear& layer : layers_) x = at::relu(layer->forward(x));
    return x;
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::mse_loss(output, target);
  }
  bool classifies() const override { return false; }

 private:
  std::vector<torch::nn::Linear> layers_;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Task make_task(const std::string& name, int rank) {
  at::manual_seed(1);
  Task task;
  const at::Generator random =
      at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank));
  const auto classes = [&](std::int64_t rows) {
    return at::randint(10, {rows}, random, at::TensorOptions(at::kLong));
  };
  if (name == "mnist") {
    task = {train::make_mnist(), at::randn({128, 1, 28, 28}, random), classes(128)};
  } else if (name == "resnet18") {
    task = {train::make_resnet18(10), at::randn({16, 3, 64, 64}, random), classes(16)};
  } else if (name == "resnet50") {
    task = {train::make_resnet50(1000), at::randn({128, 3, 32, 32}, random), classes(128)};
  } else if (name == "mlp") {
    task = {std::make_shared<Mlp>(), at::randn({64, 1024}, random), at::randn({64, 1024}, random)};
  } else {
    throw std::invalid_argument("unknown model " + name +
                                ": expected mnist, resnet18, resnet50 or mlp");
  }
  return task;
}

namespace {

// Runs one turn; returns the last loss.
double take_steps(const Step& step, int steps, const std::function<void()>& meet, Pace& pace) {
  at::Tensor loss;
  const double cpu = cpu_seconds();
  const auto begin = Clock::now();
  for (int count = 0; count < steps; ++count) {
    loss = step.loss();
    const auto forward_end = Clock::now();
    loss.backward();
    pace.backward_seconds += seconds_since(forward_end) / steps;
    step.update();
  }
  pace.cpu_seconds = (cpu_seconds() - cpu) / steps;
  meet();
  pace.seconds = seconds_since(begin) / steps;
  return loss.item<double>();
}

}  // namespace

std::vector<Measurement> measure_steps(int rounds, int steps, const std::function<void()>& meet,
                                       const std::vector<Step>& contenders) {
  std::vector<Measurement> measurements(contenders.size());
  for (std::size_t round = 0; round <= static_cast<std::size_t>(rounds); ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t index = (round + turn) % contenders.size();
      meet();
      Pace pace;
      measurements[index].loss = take_steps(contenders[index], steps, meet, pace);
      if (round > 0) measurements[index].rounds.push_back(pace);
    }
  }
  return measurements;
}

void print_measurement(const std::string& mode, const std::string& model,
                       const Measurement& measurement) {
  std::vector<double> rates;
  std::vector<double> backward_ms;
  std::vector<double> cpu_ms;
  for (const Pace& pace : measurement.rounds) {
    rates.push_back(1 / pace.seconds);
    backward_ms.push_back(1e3 * pace.backward_seconds);
    cpu_ms.push_back(1e3 * pace.cpu_seconds);
  }
  fmt::print(
      "{{\"mode\": \"{}\", \"model\": \"{}\", \"steps_per_second\": [{:.3f}], "
      "\"backward_ms\": [{:.3f}], \"cpu_ms\": [{:.3f}], \"loss\": {}}}\n",
      mode, model, fmt::join(rates, ", "), fmt::join(backward_ms, ", "), fmt::join(cpu_ms, ", "),
      measurement.loss);
  std::fflush(stdout);
}

}  // namespace ddp::bench
