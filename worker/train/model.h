#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace ddp::train {

// A model that the trainer can train: what goes in, and what is to become small. Used by one
// thread.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The mean over the samples of the batch.
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) = 0;
  // Whether output has a score for each class, so that accuracy is defined.
  virtual bool classifies() const = 0;
};

// mnist: the network of torch_xla's benchmark, for 1 x 28 x 28 images; batch_norm tells whether it
// has its two normalisations. toy: the two linear layers of PyTorch's DDP tutorial. The first
// weights come from LibTorch's default generator. `name` is one of the two.
std::shared_ptr<Model> make_model(const std::string& name, bool batch_norm);

}  // namespace ddp::train
