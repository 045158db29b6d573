#pragma once

// What the examples train, so that each shows its interface alone.
#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

struct Net : torch::nn::Module {
  Net()
      : hidden(register_module("hidden", torch::nn::Linear(8, 32))),
        output(register_module("output", torch::nn::Linear(32, 1))) {}

  at::Tensor forward(const at::Tensor& x) { return output(torch::relu(hidden(x))); }

  torch::nn::Linear hidden;
  torch::nn::Linear output;
};

// A rank's inputs: different in each step and on each rank.
inline at::Tensor inputs_of(int rank, int step, int samples = 32) {
  auto generator = at::detail::createCPUGenerator(1000 * static_cast<unsigned>(rank + 1) + step);
  return at::randn({samples, 8}, generator);
}

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& input) {
  return torch::nn::functional::mse_loss(output, input.sin().sum(1, /*keepdim=*/true));
}
