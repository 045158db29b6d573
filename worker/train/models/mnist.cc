#include "worker/train/models/mnist.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace ddp::train {
namespace {

class Mnist final : public Model {
 public:
  explicit Mnist(double dropout)
      : dropout_(dropout),
        conv1_(register_module("conv1", torch::nn::Conv2d(1, 10, 5))),
        conv2_(register_module("conv2", torch::nn::Conv2d(10, 20, 5))),
        fc1_(register_module("fc1", torch::nn::Linear(320, 50))),
        fc2_(register_module("fc2", torch::nn::Linear(50, 10))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(10))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(20))) {}

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = bn1_->forward(at::relu(at::max_pool2d(conv1_->forward(input), 2)));
    x = bn2_->forward(at::relu(at::max_pool2d(conv2_->forward(x), 2)));
    x = at::relu(fc1_->forward(at::flatten(x, 1)));
    if (dropout_ > 0) x = at::dropout(x, dropout_, is_training());
    return at::log_softmax(fc2_->forward(x), 1);
  }

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::nll_loss(output, target);
  }
  bool classifies() const override { return true; }

 private:
  const double dropout_;
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::BatchNorm2d bn2_;
};

}  // namespace

std::shared_ptr<Model> make_mnist(double dropout) { return std::make_shared<Mnist>(dropout); }

}  // namespace ddp::train
