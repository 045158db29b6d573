#include "worker/train/models/gpt.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "common/base/check.h"
#include "worker/data/random.h"

namespace ddp::train {
namespace {

constexpr std::int64_t kBytes = 256;

// GPT-2's initial weights. For the layers that add to the residual stream, the caller's deviation
// shrinks with the number of layers.
void initialize(torch::nn::LinearImpl& linear, double deviation) {
  torch::nn::init::normal_(linear.weight, 0, deviation);
  torch::nn::init::zeros_(linear.bias);
}

class DecoderLayer final : public torch::nn::Module {
 public:
  explicit DecoderLayer(const GptShape& shape)
      : heads_(shape.heads),
        ln1_(register_module("ln1", norm(shape.width))),
        qkv_(register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width))),
        proj_(register_module("proj", torch::nn::Linear(shape.width, shape.width))),
        ln2_(register_module("ln2", norm(shape.width))),
        fc1_(register_module("fc1", torch::nn::Linear(shape.width, 4 * shape.width))),
        fc2_(register_module("fc2", torch::nn::Linear(4 * shape.width, shape.width))) {
    constexpr double kDeviation = 0.02;
    const double into_sum = kDeviation / std::sqrt(2.0 * static_cast<double>(shape.layers));
    initialize(*qkv_, kDeviation);
    initialize(*proj_, into_sum);
    initialize(*fc1_, kDeviation);
    initialize(*fc2_, into_sum);
  }

  // x: [n, length, width]. mask: [length, length], added to the attention scores.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor sum = x + attention(ln1_->forward(x), mask);
    return sum + fc2_->forward(at::gelu(fc1_->forward(ln2_->forward(sum))));
  }

  static torch::nn::LayerNorm norm(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

 private:
  at::Tensor attention(const at::Tensor& x, const at::Tensor& mask) {
    const std::int64_t count = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    // [3, n, heads, length, width / heads]
    const at::Tensor all =
        qkv_->forward(x).view({count, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
    const at::Tensor scores = at::matmul(all[0] * scale, all[1].transpose(-2, -1)) + mask;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), all[2]);
    return proj_->forward(mixed.transpose(1, 2).reshape({count, length, width}));
  }

  const std::int64_t heads_;
  torch::nn::LayerNorm ln1_;
  torch::nn::Linear qkv_;
  torch::nn::Linear proj_;
  torch::nn::LayerNorm ln2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

class Gpt final : public Model {
 public:
  explicit Gpt(const GptShape& shape)
      : shape_(shape),
        bytes_(register_module("bytes", torch::nn::Embedding(kBytes, shape.width))),
        positions_(register_module("positions", torch::nn::Embedding(shape.context, shape.width))),
        layers_(register_module("layers", torch::nn::ModuleList())),
        ln_(register_module("ln", DecoderLayer::norm(shape.width))),
        head_(register_module(
            "head", torch::nn::Linear(torch::nn::LinearOptions(shape.width, kBytes).bias(false)))) {
    DDP_CHECK(shape.width % shape.heads == 0, "{} heads of {}", shape.heads, shape.width);
    constexpr double kDeviation = 0.02;
    for (const auto& table : {bytes_, positions_}) {
      torch::nn::init::normal_(table->weight, 0, kDeviation);
    }
    torch::nn::init::normal_(head_->weight, 0, kDeviation);
    for (std::int64_t i = 0; i < shape.layers; ++i)
      layers_->push_back(std::make_shared<DecoderLayer>(shape));
  }

  at::Tensor forward(const at::Tensor& input) override {
    const std::int64_t length = input.size(1);
    DDP_CHECK(length <= shape_.context, "{} bytes, the context is {}", length, shape_.context);
    const at::Tensor places = at::arange(length, input.options());
    at::Tensor x = bytes_->forward(input) + positions_->forward(places);
    const at::Tensor mask = at::triu(
        at::full({length, length}, -std::numeric_limits<float>::infinity(), x.options()), 1);
    for (const auto& layer : *layers_) x = layer->as<DecoderLayer>()->forward(x, mask);
    return head_->forward(ln_->forward(x)).view({-1, kBytes});
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return at::cross_entropy_loss(output, target.flatten());
  }
  bool classifies() const override { return true; }

 private:
  const GptShape shape_;
  torch::nn::Embedding bytes_;
  torch::nn::Embedding positions_;
  torch::nn::ModuleList layers_;
  torch::nn::LayerNorm ln_;
  torch::nn::Linear head_;
};

// Draws an index with these probabilities, which add up to about 1.
std::int64_t draw(const at::Tensor& probabilities, Random& random) {
  double left = random.between(0, 1);
  const float* const shares = probabilities.data_ptr<float>();
  for (std::int64_t i = 0; i < kBytes; ++i) {
    left -= static_cast<double>(shares[i]);
    if (left < 0) return i;
  }
  return kBytes - 1;
}

}  // namespace

std::shared_ptr<Model> make_gpt(const GptShape& shape) { return std::make_shared<Gpt>(shape); }

std::string sample_text(Model& model, std::int64_t context, const std::string& prompt,
                        std::int64_t count, std::uint64_t seed) {
  DDP_CHECK(!prompt.empty(), "no prompt");
  const bool training = model.is_training();
  model.eval();
  const at::NoGradGuard no_grad;
  const at::Device device = model.parameters().front().device();
  Random random({seed, 0x73616d706c65});
  std::string text = prompt;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = std::min(static_cast<std::int64_t>(text.size()), context);
    const at::Tensor input = at::empty({1, length}, at::kLong);
    for (std::int64_t k = 0; k < length; ++k) {
      const auto byte = text[text.size() - static_cast<std::size_t>(length - k)];
      input.data_ptr<std::int64_t>()[k] = static_cast<unsigned char>(byte);
    }
    const at::Tensor scores = model.forward(input.to(device))[length - 1];
    const at::Tensor shares = at::softmax(scores, 0).to(at::kCPU, at::kFloat).contiguous();
    text.push_back(static_cast<char>(draw(shares, random)));
  }
  model.train(training);
  return text.substr(prompt.size());
}

}  // namespace ddp::train
