#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/optimizer_state.h"

// A small model with every kind of state, all of which a checkpoint must restore.
namespace ddp::test {

struct Net : torch::nn::Module {
  explicit Net(std::int64_t width = 12) {
    conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    first = register_module("first", torch::nn::Linear(4 * 6 * 6, width));
    drop = register_module("drop", torch::nn::Dropout(0.4));
    last = register_module("last", torch::nn::Linear(width, 3));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = torch::relu(norm(conv(images))).flatten(1);
    return torch::log_softmax(last(drop(torch::relu(first(x)))), 1);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear last{nullptr};
};

// One step on data that follows from the step's number; dropout draws from the default generator.
inline void train_step(Net& net, torch::optim::Optimizer& optimizer, std::int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 99);
  const torch::Tensor images = torch::randn({8, 1, 8, 8}, generator);
  const torch::Tensor labels = torch::randint(3, {8}, generator);
  optimizer.zero_grad();
  torch::nll_loss(net.forward(images), labels).backward();
  optimizer.step();
}

inline std::string bytes_of_tensor(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

// Every byte that training depends on: weights, buffers, optimizer, default generator.
inline std::string state_bytes(const torch::nn::Module& net, torch::optim::Optimizer& optimizer) {
  std::string text = weights_sha256(net);
  OptimizerSnapshot snapshot = make_optimizer_state("o", optimizer, net)->snapshot("");
  text += snapshot.description.dump();
  std::map<std::string, std::string> tensors;
  for (const StateTensor& state : snapshot.tensors) {
    tensors[state.name] = bytes_of_tensor(state.tensor);
  }
  for (const auto& [name, bytes] : tensors) text += name + bytes;
  return text + bytes_of_tensor(at::detail::getDefaultCPUGenerator().get_state());
}

// For tests that look at the folder right after save().
inline CheckpointOptions at_once(std::string directory, int keep = 3) {
  CheckpointOptions options;
  options.directory = std::move(directory);
  options.keep = keep;
  options.asynchronous = false;
  return options;
}

// Flips one bit in the middle of a file.
inline void damage(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
  file.seekg(middle);
  const auto byte = static_cast<char>(file.get() ^ 4);
  file.seekp(middle);
  file.put(byte);
}

// But for the lock, which stays.
inline std::vector<std::string> names_in(const std::filesystem::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().filename() != ".lock") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ddp::test
