#include "worker/train/models/resnet.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace ddp::train {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// One residual block: convolutions with normalisation, added to the input or to its projection.
class Block : public torch::nn::Module {
 public:
  struct Shape {
    std::int64_t in, planes, out, stride;
  };
  virtual at::Tensor forward(const at::Tensor& input) = 0;

 protected:
  // The projection is drawn before the block's convolutions and registered after them.
  explicit Block(const Shape& shape) {
    if (shape.stride == 1 && shape.in == shape.out) return;
    projection_ = torch::nn::Sequential(convolution(shape.in, shape.out, 1, shape.stride),
                                        torch::nn::BatchNorm2d(shape.out));
  }
  void register_projection() {
    if (projection_) register_module("downsample", projection_);
  }
  at::Tensor shortcut(const at::Tensor& input) {
    return projection_ ? projection_->forward(input) : input;
  }

 private:
  torch::nn::Sequential projection_{nullptr};
};

// Two 3 x 3 convolutions.
class BasicBlock final : public Block {
 public:
  static constexpr std::int64_t kExpansion = 1;

  explicit BasicBlock(const Shape& shape)
      : Block(shape),
        conv1_(register_module("conv1", convolution(shape.in, shape.planes, 3, shape.stride))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(shape.planes))),
        conv2_(register_module("conv2", convolution(shape.planes, shape.planes, 3, 1))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(shape.planes))) {
    register_projection();
  }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
    x = bn2_->forward(conv2_->forward(x));
    return x.add_(shortcut(input)).relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
};

// Convolutions of 1 x 1, 3 x 3 and 1 x 1; the middle one has a quarter of the channels.
class Bottleneck final : public Block {
 public:
  static constexpr std::int64_t kExpansion = 4;

  explicit Bottleneck(const Shape& shape)
      : Block(shape),
        conv1_(register_module("conv1", convolution(shape.in, shape.planes, 1, 1))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(shape.planes))),
        conv2_(register_module("conv2", convolution(shape.planes, shape.planes, 3, shape.stride))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(shape.planes))),
        conv3_(register_module("conv3", convolution(shape.planes, shape.out, 1, 1))),
        bn3_(register_module("bn3", torch::nn::BatchNorm2d(shape.out))) {
    register_projection();
  }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
    x = bn2_->forward(conv2_->forward(x)).relu_();
    x = bn3_->forward(conv3_->forward(x));
    return x.add_(shortcut(input)).relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Conv2d conv3_;
  torch::nn::BatchNorm2d bn3_;
};

// Blocks one after the other, named "0", "1", ...
class Layer final : public torch::nn::Module {
 public:
  void add(std::shared_ptr<Block> block) {
    blocks_.push_back(register_module(std::to_string(blocks_.size()), std::move(block)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks_) x = block->forward(x);
    return x;
  }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

template <typename BlockType>
class ResNet final : public TwoStageModel {
 public:
  ResNet(const std::array<int, 4>& depths, std::int64_t num_classes)
      : conv1_(register_module(
            "conv1", torch::nn::Conv2d(
                         torch::nn::Conv2dOptions(3, kStem, 7).stride(2).padding(3).bias(false)))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(kStem))),
        layer1_(make_layer("layer1", 64, depths[0], 1)),
        layer2_(make_layer("layer2", 128, depths[1], 2)),
        layer3_(make_layer("layer3", 256, depths[2], 2)),
        layer4_(make_layer("layer4", 512, depths[3], 2)),
        fc_(register_module("fc", torch::nn::Linear(channels_, num_classes))) {
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* convolution = module->template as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::cross_entropy_loss(output, target);
  }
  bool classifies() const override { return true; }

 protected:
  at::Tensor front(const at::Tensor& input) override {
    at::Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
    x = at::max_pool2d(x, 3, 2, 1);
    return layer2_->forward(layer1_->forward(x));
  }
  at::Tensor back(const at::Tensor& boundary) override {
    const at::Tensor x = layer4_->forward(layer3_->forward(boundary));
    return fc_->forward(at::flatten(at::adaptive_avg_pool2d(x, {1, 1}), 1));
  }
  std::vector<std::string> front_children() const override {
    return {"conv1", "bn1", "layer1", "layer2"};
  }

 private:
  static constexpr std::int64_t kStem = 64;

  std::shared_ptr<Layer> make_layer(const char* name, std::int64_t planes, int depth,
                                    std::int64_t stride) {
    auto layer = std::make_shared<Layer>();
    const std::int64_t out = planes * BlockType::kExpansion;
    for (int i = 0; i < depth; ++i) {
      layer->add(std::make_shared<BlockType>(Block::Shape{
          .in = channels_, .planes = planes, .out = out, .stride = i == 0 ? stride : 1}));
      channels_ = out;
    }
    return register_module(name, std::move(layer));
  }

  std::int64_t channels_ = kStem;  // Input channels of the next layer to be made.
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  std::shared_ptr<Layer> layer1_;
  std::shared_ptr<Layer> layer2_;
  std::shared_ptr<Layer> layer3_;
  std::shared_ptr<Layer> layer4_;
  torch::nn::Linear fc_;
};

}  // namespace

std::shared_ptr<TwoStageModel> make_resnet18(std::int64_t num_classes) {
  return std::make_shared<ResNet<BasicBlock>>(std::array{2, 2, 2, 2}, num_classes);
}

std::shared_ptr<TwoStageModel> make_resnet50(std::int64_t num_classes) {
  return std::make_shared<ResNet<Bottleneck>>(std::array{3, 4, 6, 3}, num_classes);
}

}  // namespace ddp::train
