#include "worker/train/models/mlp.h"

#include <ATen/ops/flatten.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

namespace ddp::train {
namespace {

class Mlp final : public Model {
 public:
  Mlp()
      : fc1_(register_module("fc1", torch::nn::Linear(784, 512))),
        fc2_(register_module("fc2", torch::nn::Linear(512, 512))),
        fc3_(register_module("fc3", torch::nn::Linear(512, 10))) {}

  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor x = at::relu(fc1_->forward(at::flatten(input, 1)));
    return at::log_softmax(fc3_->forward(at::relu(fc2_->forward(x))), 1);
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::nll_loss(output, target);
  }
  bool classifies() const override { return true; }

 private:
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
  torch::nn::Linear fc3_;
};

}  // namespace

std::shared_ptr<Model> make_mlp() { return std::make_shared<Mlp>(); }

}  // namespace ddp::train
