#include "tests/torch/models.h"

#include <cstring>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

namespace ddp::test {

at::Generator seeded(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor random_tensor(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, seeded(seed));
}

void fill(torch::nn::Module& module, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = seeded(seed);
  for (const at::Tensor& parameter : module.parameters()) {
    parameter.uniform_(-0.1, 0.1, generator);
  }
}

Mlp::Mlp(const std::vector<std::int64_t>& widths) {
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers.push_back(
        register_module("layer" + std::to_string(i), torch::nn::Linear(widths[i], widths[i + 1])));
  }
}

at::Tensor Mlp::forward(at::Tensor x) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    x = layers[i]->forward(x);
    if (i + 1 < layers.size()) x = torch::tanh(x);
  }
  return x;
}

ConvNet::ConvNet(bool batch_norm) {
  conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  if (batch_norm) norm1 = register_module("norm1", torch::nn::BatchNorm2d(10));
  conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  if (batch_norm) norm2 = register_module("norm2", torch::nn::BatchNorm2d(20));
  full1 = register_module("full1", torch::nn::Linear(320, 50));
  full2 = register_module("full2", torch::nn::Linear(50, 10));
}

at::Tensor ConvNet::forward(const at::Tensor& images) {
  at::Tensor x = torch::relu(torch::max_pool2d(conv1(images), 2));
  if (norm1) x = norm1(x);
  x = torch::relu(torch::max_pool2d(conv2(x), 2));
  if (norm2) x = norm2(x);
  x = torch::relu(full1(x.flatten(1)));
  return torch::log_softmax(full2(x), 1);
}

std::vector<std::pair<std::string, at::Tensor>> gradients_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined()) result.emplace_back(item.key(), gradient.variable_data().clone());
  }
  return result;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.variable_data().contiguous();
  const at::Tensor y = b.variable_data().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

std::string bytes_of(const torch::nn::Module& module) {
  std::string result;
  const auto append = [&](const at::Tensor& tensor) {
    const at::Tensor packed = tensor.variable_data().contiguous();
    if (packed.nbytes() != 0) {
      result.append(static_cast<const char*>(packed.data_ptr()), packed.nbytes());
    }
  };
  for (const at::Tensor& parameter : module.parameters()) append(parameter);
  for (const at::Tensor& buffer : module.buffers()) append(buffer);
  return result;
}

}  // namespace ddp::test
