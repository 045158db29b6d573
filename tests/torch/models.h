#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

// Modules and data for tests. Values come from a generator of their own, so that ranks on
// threads of one process do not disturb each other.
namespace ddp::test {

at::Generator seeded(std::uint64_t seed);
at::Tensor random_tensor(at::IntArrayRef sizes, std::uint64_t seed);

// Sets every parameter from the seed. Modules that were filled from equal seeds are equal.
void fill(torch::nn::Module& module, std::uint64_t seed);

// Linear layers with tanh between them.
struct Mlp : torch::nn::Module {
  explicit Mlp(const std::vector<std::int64_t>& widths);
  at::Tensor forward(at::Tensor x);
  std::vector<torch::nn::Linear> layers;
};

// The MNIST network, with batch norm or without.
struct ConvNet : torch::nn::Module {
  explicit ConvNet(bool batch_norm);
  at::Tensor forward(const at::Tensor& images);
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::Conv2d conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr};
  torch::nn::BatchNorm2d norm2{nullptr};
  torch::nn::Linear full1{nullptr};
  torch::nn::Linear full2{nullptr};
};

// All gradients that are defined, by name, as flat copies.
std::vector<std::pair<std::string, at::Tensor>> gradients_of(const torch::nn::Module& module);

// True if both have the same sizes, type and bytes.
bool same_bytes(const at::Tensor& a, const at::Tensor& b);

// Bytes of all parameters and buffers in the order of definition.
std::string bytes_of(const torch::nn::Module& module);

}  // namespace ddp::test
