#include "worker/train/models/toy.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

namespace ddp::train {
namespace {

class Toy final : public TwoStageModel {
 public:
  Toy()
      : net1_(register_module("net1", torch::nn::Linear(10, 10))),
        net2_(register_module("net2", torch::nn::Linear(10, 5))) {}

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::mse_loss(output, target);
  }
  bool classifies() const override { return false; }

 protected:
  at::Tensor front(const at::Tensor& input) override { return at::relu(net1_->forward(input)); }
  at::Tensor back(const at::Tensor& boundary) override { return net2_->forward(boundary); }
  std::vector<std::string> front_children() const override { return {"net1"}; }

 private:
  torch::nn::Linear net1_;
  torch::nn::Linear net2_;
};

}  // namespace

std::shared_ptr<TwoStageModel> make_toy() { return std::make_shared<Toy>(); }

}  // namespace ddp::train
