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

// A model that the trainer can train: what goes in, and what is to become small. Used by one
// thread.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The mean over the samples of the batch.
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) = 0;
  // Whether output has a score for each class of each element of the target, so that accuracy is
  // defined.
  virtual bool classifies() const = 0;
};

struct ModelSpec {
  std::string name;
  bool batch_norm = true;           // Of mnist: whether it has its two normalisations.
  double dropout = 0;               // Of mnist: see Options.
  std::int64_t num_classes = 1000;  // Of the ResNets.
  std::vector<c10::Device> devices = {
      c10::kCPU};                  // Two for a model-parallel one, which may be equal.
  std::int64_t micro_batches = 1;  // Of a model-parallel one.
  GptShape gpt = {};
};

// The first weights come from LibTorch's default generator, whatever the devices are. `name` is one
// of
//   toy, toy-large      two linear layers, 10-10-5 and 10-1,000,000-5: PyTorch's DDP tutorial
//   mnist               the network of torch_xla's benchmark, for 1 x 28 x 28 images
//   mlp                 three linear layers for the same images
//   gpt                 a language model over bytes (gpt.h)
//   resnet18, resnet50  for 3 x size x size images
//   toy-model-parallel, resnet50-model-parallel
//                       the same models, cut in two over two devices (two_stage.h): the same
//                       names, the same first weights
std::shared_ptr<Model> make_model(const ModelSpec& spec);

}  // namespace ddp::train
