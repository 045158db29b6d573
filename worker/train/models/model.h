#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "worker/train/models/gpt_shape.h"

namespace ddp::train {

// A model that the trainer can train: its forward pass and its loss. Used by one thread.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The mean over the samples of the batch.
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) = 0;
  // Whether the output has a score for each class and each element of the target, so that accuracy
  // is defined.
  virtual bool classifies() const = 0;
};

struct ModelSpec {
  std::string name;
  double dropout = 0;                              // mnist only: see Options.
  std::int64_t num_classes = 1000;                 // ResNets only.
  std::vector<c10::Device> devices = {c10::kCPU};  // Two, possibly equal, if model-parallel.
  std::int64_t micro_batches = 1;                  // Model-parallel models only.
  GptShape gpt = {};
};

// Makes a model. Its initial weights come from LibTorch's default generator of the CPU, whatever
// the devices are. `name` is one of
//   toy                 two linear layers, 10-10-5: PyTorch's DDP tutorial
//   mnist               the network of torch_xla's benchmark, for 1 x 28 x 28 images
//   mlp                 three linear layers for the same images
//   gpt                 a language model over bytes (gpt.h)
//   resnet18, resnet50  for 3 x size x size images
//   toy-model-parallel, resnet50-model-parallel
//                       the same models in two stages on two devices (two_stage.h), with the
//                       same parameter names and initial weights
std::shared_ptr<Model> make_model(const ModelSpec& spec);

}  // namespace ddp::train
