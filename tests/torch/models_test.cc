#include "tests/torch/models.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "worker/train/models/gpt.h"
#include "worker/train/models/model.h"
#include "worker/train/models/pipeline.h"

// The models of ddp-train: their definitions, and that cutting one in two changes nothing.
namespace ddp::train {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Model> model_of(ModelSpec spec, std::uint64_t seed = 7) {
  if (spec.name.ends_with("-model-parallel")) spec.devices = {c10::kCPU, c10::kCPU};
  torch::manual_seed(seed);
  return make_model(spec);
}

std::int64_t parameters_of(Model& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

struct Sample {
  at::Tensor input;
  at::Tensor target;
};

Sample images(std::int64_t count, std::int64_t side, std::int64_t classes) {
  return {test::random_tensor({count, 3, side, side}, 3),
          torch::arange(count, torch::kLong).remainder(classes)};
}

Sample rows(std::int64_t count) {
  return {test::random_tensor({count, 10}, 3), test::random_tensor({count, 5}, 4)};
}

at::Tensor backward(Model& model, const Sample& sample) {
  const at::Tensor output = model.forward(sample.input);
  model.loss(output, sample.target).backward();
  return output.detach();
}

// What a step computes: gradients by name, and buffers.
std::vector<std::pair<std::string, at::Tensor>> step_of(const torch::nn::Module& model) {
  auto result = test::gradients_of(model);
  for (const auto& buffer : model.named_buffers())
    result.emplace_back(buffer.key(), buffer.value());
  return result;
}

void expect_same_step(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto own = step_of(a);
  const auto other = step_of(b);
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].first, other[i].first);
    EXPECT_TRUE(test::same_bytes(own[i].second, other[i].second)) << own[i].first;
  }
}

TEST(Models, HaveTheSizesThatAreKnown) {
  EXPECT_EQ(parameters_of(*model_of({.name = "toy"})), 165);
  EXPECT_EQ(parameters_of(*model_of({.name = "mnist"})), 21'840 + 60);
  EXPECT_EQ(parameters_of(*model_of({.name = "mlp"})), 669'706);
  // Two tables, the output, two numbers of each norm, and 12 w^2 + 9 w + 4 w of each layer.
  EXPECT_EQ(parameters_of(*model_of({.name = "gpt"})),
            2 * 256 * 128 + 128 * 128 + 256 + 4 * (12 * 128 * 128 + 13 * 128));
  EXPECT_EQ(parameters_of(*model_of({.name = "resnet18"})), 11'689'512);
  EXPECT_EQ(parameters_of(*model_of({.name = "resnet50"})), 25'557'032);
  EXPECT_EQ(parameters_of(*model_of({.name = "resnet50-model-parallel"})), 25'557'032);
  EXPECT_EQ(parameters_of(*model_of({.name = "resnet18", .num_classes = 10})), 11'181'642);
}

TEST(Models, AreDrawnFromTheSeedAlone) {
  for (const char* name : {"toy", "mnist", "gpt", "resnet18"}) {
    const std::string bytes = test::bytes_of(*model_of({.name = name}));
    EXPECT_EQ(bytes, test::bytes_of(*model_of({.name = name}))) << name;
    EXPECT_NE(bytes, test::bytes_of(*model_of({.name = name}, 8))) << name;
  }
  EXPECT_EQ(test::bytes_of(*model_of({.name = "toy"})),
            test::bytes_of(*model_of({.name = "toy-model-parallel"})));
  EXPECT_EQ(test::bytes_of(*model_of({.name = "resnet50"})),
            test::bytes_of(*model_of({.name = "resnet50-model-parallel"})));
}

TEST(Gpt, TellsAByteFromThoseBeforeItAlone) {
  const GptShape shape{.layers = 2, .heads = 2, .width = 16, .context = 12};
  const auto model = model_of({.name = "gpt", .gpt = shape});
  const torch::NoGradGuard no_grad;
  const at::Tensor text = torch::randint(256, {3, 12}, torch::kLong);
  const at::Tensor scores = model->forward(text).view({3, 12, 256});
  for (std::int64_t changed = 0; changed < 12; ++changed) {
    at::Tensor other = text.clone();
    other[1][changed] = (other[1][changed] + 1) % 256;
    const at::Tensor differs =
        (model->forward(other).view({3, 12, 256}) - scores).abs().amax(2).gt(0);
    for (std::int64_t at = 0; at < 12; ++at) {
      EXPECT_EQ(differs[1][at].item<bool>(), at >= changed) << changed << " " << at;
      EXPECT_FALSE(differs[0][at].item<bool>());
    }
  }
  // A text that is shorter than the context.
  EXPECT_TRUE(torch::allclose(model->forward(text.narrow(1, 0, 5)).view({3, 5, 256}),
                              scores.narrow(1, 0, 5), 1e-5, 1e-6));
  // Before it has learned anything, every byte is about as likely as any other.
  EXPECT_NEAR(model->loss(model->forward(text), text).item<double>(), std::log(256.0), 0.1);
}

TEST(Gpt, LearnsATextAndWritesIt) {
  const GptShape shape{.layers = 1, .heads = 2, .width = 32, .context = 16};
  const auto model = model_of({.name = "gpt", .gpt = shape});
  const std::string text = "abcdefghijklmnop";
  at::Tensor bytes = torch::empty({17}, torch::kLong);
  for (std::int64_t i = 0; i < 17; ++i) bytes[i] = text[static_cast<std::size_t>(i) % 16];
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01));
  const at::Tensor input = bytes.narrow(0, 0, 16).unsqueeze(0);
  const at::Tensor target = bytes.narrow(0, 1, 16).unsqueeze(0);
  for (int step = 0; step < 150; ++step) {
    optimizer.zero_grad();
    model->loss(model->forward(input), target).backward();
    optimizer.step();
  }
  EXPECT_LT(model->loss(model->forward(input), target).item<double>(), 0.05);
  model->train();
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_EQ(sample_text(*model, shape.context, "a", 15, 3), "bcdefghijklmnop");
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), generator));
  // Beyond the context, too.
  const std::string long_text = sample_text(*model, shape.context, "a", 40, 3);
  EXPECT_EQ(long_text.size(), 40U);
  EXPECT_EQ(sample_text(*model, shape.context, "a", 40, 3), long_text);
}

TEST(Models, DropoutDrawsInTrainingOnly) {
  const auto model = model_of({.name = "mnist", .dropout = 0.5});
  const at::Tensor input = test::random_tensor({4, 1, 28, 28}, 3);
  const auto forward = [&] {
    at::manual_seed(3);
    const at::Tensor first = model->forward(input);
    return test::same_bytes(first, model->forward(input));
  };
  EXPECT_FALSE(forward());
  model->eval();
  EXPECT_TRUE(forward());
}

TEST(Models, ResNetsTakeImagesOfAnySize) {
  const auto model = model_of({.name = "resnet18", .num_classes = 7});
  for (const std::int64_t side : {32, 50, 96}) {
    EXPECT_EQ(model->forward(images(2, side, 7).input).sizes(), (std::vector<std::int64_t>{2, 7}));
  }
}

// Python's dictionary of tensors.
void save(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  c10::Dict<std::string, at::Tensor> values;
  for (const auto& [name, tensor] : tensors) values.insert(name, tensor.detach().clone());
  const std::vector<char> bytes = torch::pickle_save(values);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class ResNetOracle : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Depths, ResNetOracle, ::testing::Values("resnet18", "resnet50"),
                         [](const auto& name) { return name.param; });

TEST_P(ResNetOracle, PythonDrawsAndComputesTheSame) {
  const test::TempDir folder;
  const auto model = model_of({.name = GetParam()});
  std::vector<std::pair<std::string, at::Tensor>> first;
  for (const auto& parameter : model->named_parameters()) {
    first.emplace_back(parameter.key(), parameter.value());
  }
  for (const auto& buffer : model->named_buffers())
    first.emplace_back(buffer.key(), buffer.value());
  save(folder.path() / "first.pt", first);
  const Sample sample = images(4, 64, 1000);
  save(folder.path() / "batch.pt", {{"input", sample.input}, {"target", sample.target}});
  const at::Tensor output = model->forward(sample.input);
  const at::Tensor loss = model->loss(output, sample.target);
  loss.backward();
  std::vector<std::pair<std::string, at::Tensor>> result = {{"output", output}, {"loss", loss}};
  for (const auto& parameter : model->named_parameters()) {
    result.emplace_back("grad/" + parameter.key(), parameter.value().grad());
  }
  for (const auto& buffer : model->named_buffers()) {
    result.emplace_back("after/" + buffer.key(), buffer.value().clone());
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  result.emplace_back("eval_output", model->forward(sample.input));
  save(folder.path() / "result.pt", result);

  const char* source = std::getenv("DDP_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "run through ctest";
  const test::Finished python =
      test::run({"/usr/bin/python3", std::string(source) + "/tests/torch/resnet_oracle.py",
                 GetParam(), folder.path().string()},
                {}, std::chrono::minutes(2));
  std::printf("%s", python.out.c_str());
  EXPECT_EQ(python.status, 0) << python.out << python.err;
}

TEST(ModelParallel, OneMicroBatchGivesTheBitsOfTheUndividedModel) {
  const auto check = [](const ModelSpec& whole_spec, const ModelSpec& halves_spec,
                        const Sample& sample) {
    const auto whole = model_of(whole_spec);
    const auto halves = model_of(halves_spec);
    for (int step = 0; step < 2; ++step) {  // The second adds to the gradients of the first.
      EXPECT_TRUE(test::same_bytes(backward(*whole, sample), backward(*halves, sample)));
      expect_same_step(*whole, *halves);
    }
    whole->eval();
    halves->eval();
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(test::same_bytes(whole->forward(sample.input), halves->forward(sample.input)));
  };
  check({.name = "toy"}, {.name = "toy-model-parallel"}, rows(20));
  check({.name = "resnet50", .num_classes = 10},
        {.name = "resnet50-model-parallel", .num_classes = 10}, images(4, 32, 10));
}

TEST(ModelParallel, MicroBatchesGiveTheBitsOfOneAfterTheOther) {
  const auto check = [](const ModelSpec& whole_spec, ModelSpec halves_spec, const Sample& sample,
                        std::int64_t pieces) {
    const auto whole = model_of(whole_spec);
    halves_spec.micro_batches = pieces;
    const auto halves = model_of(halves_spec);
    const at::Tensor output = backward(*halves, sample);
    // The undivided model, with the loss over all pieces together and one backward for each.
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& piece : sample.input.tensor_split(pieces)) {
      outputs.push_back(whole->forward(piece));
    }
    const at::Tensor joint = at::cat(outputs).detach().requires_grad_();
    EXPECT_TRUE(test::same_bytes(output, joint));
    whole->loss(joint, sample.target).backward();
    const std::vector<at::Tensor> gradients = joint.grad().tensor_split(pieces);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].backward(gradients[i]);
    expect_same_step(*whole, *halves);
  };
  check({.name = "toy"}, {.name = "toy-model-parallel"}, rows(20), 4);
  check({.name = "toy"}, {.name = "toy-model-parallel"}, rows(7), 3);
  check({.name = "resnet50", .num_classes = 10},
        {.name = "resnet50-model-parallel", .num_classes = 10}, images(6, 32, 10), 3);
}

TEST(ModelParallel, WithoutNormalisationMicroBatchesChangeTheLastBitsOnly) {
  const Sample sample = rows(64);
  const auto whole = model_of({.name = "toy"});
  backward(*whole, sample);
  for (const std::int64_t pieces : {2, 5, 64, 100}) {
    const auto halves = model_of({.name = "toy-model-parallel", .micro_batches = pieces});
    EXPECT_TRUE(
        torch::allclose(backward(*halves, sample), whole->forward(sample.input), 1e-6, 1e-6));
    const auto expected = step_of(*whole);
    const auto got = step_of(*halves);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got[i].second, expected[i].second, 1e-5, 1e-6)) << got[i].first;
    }
  }
}

TEST(ModelParallel, ForwardsMayComeBeforeTheirBackwards) {
  const auto whole = model_of({.name = "toy"});
  const auto halves = model_of({.name = "toy-model-parallel", .micro_batches = 2});
  const Sample sample = rows(8);
  const at::Tensor first = halves->forward(sample.input);
  const at::Tensor second = halves->forward(sample.input * 2);
  halves->loss(second, sample.target).backward();
  halves->loss(first, sample.target).backward();
  whole->loss(whole->forward(sample.input * 2), sample.target).backward();
  whole->loss(whole->forward(sample.input), sample.target).backward();
  const auto expected = step_of(*whole);
  const auto got = step_of(*halves);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i].second, expected[i].second, 1e-5, 1e-6)) << got[i].first;
  }
}

// Two that come to it wait for each other; false if the other does not come.
class Meeting {
 public:
  bool wait() {
    ++arrived_;
    return test::wait_until([this] { return arrived_ >= 2; }, std::chrono::seconds(20));
  }

 private:
  std::atomic<int> arrived_{0};
};

TEST(ModelParallel, TheBackWorksOnOneMicroBatchWhileTheFrontWorksOnTheNext) {
  Meeting forward;
  Meeting backward;
  std::atomic<int> met{0};
  // Hooks of tensors run while the stage differentiates.
  const auto meet_in_backward = [&](const at::Tensor& tensor) {
    tensor.register_hook([&](const at::Tensor& /*gradient*/) { met += backward.wait() ? 1 : 0; });
  };
  const at::Tensor weight = torch::ones({1}).requires_grad_();
  const at::Tensor other = torch::ones({1}).requires_grad_();
  int in_front = 0;
  int in_back = 0;
  Pipeline::Stage front{[&](const at::Tensor& x) {
                          if (in_front++ == 1) met += forward.wait() ? 1 : 0;
                          at::Tensor y = x * weight;
                          if (in_front == 1) meet_in_backward(y);
                          return y;
                        },
                        {weight}};
  Pipeline::Stage back{[&](const at::Tensor& x) {
                         if (in_back++ == 0) met += forward.wait() ? 1 : 0;
                         at::Tensor y = x * other;
                         if (in_back == 2) meet_in_backward(y);
                         return y;
                       },
                       {other}};
  Pipeline pipeline(std::move(front), std::move(back), 2);
  const at::Tensor output = pipeline.forward(torch::tensor({2.0F, 3.0F}));
  EXPECT_EQ(met, 2) << "front and back did not meet in forward";
  output.sum().backward();
  EXPECT_EQ(met, 4) << "front and back did not meet in backward";
  EXPECT_EQ(weight.grad().item<float>(), 5);
  EXPECT_EQ(other.grad().item<float>(), 5);
}

TEST(ModelParallel, FrozenParametersGetNoGradient) {
  const Sample sample = rows(8);
  for (const char* frozen : {"net1", "net2"}) {
    const auto model = model_of({.name = "toy-model-parallel", .micro_batches = 2});
    for (const at::Tensor& parameter : model->named_children()[frozen]->parameters()) {
      parameter.set_requires_grad(false);
    }
    backward(*model, sample);
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_EQ(parameter.value().grad().defined(), !parameter.key().starts_with(frozen));
    }
  }
}

TEST(ModelParallel, ErrorsLeaveByTheCallThatCausedThem) {
  const auto model = model_of({.name = "toy-model-parallel", .micro_batches = 2});
  EXPECT_THROW(model->forward(torch::zeros({4, 9})), c10::Error);  // In the front; none is stuck.
  const Sample sample = rows(4);
  const at::Tensor loss = model->loss(model->forward(sample.input), sample.target);
  loss.backward({}, /*retain_graph=*/true);
  try {
    loss.backward();
    FAIL() << "a second backward";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("second backward"));
  }
  backward(*model, sample);  // And it goes on.
}

TEST(ModelParallel, ABackwardThatIsGivenUpDisturbsNothing) {
  const Sample sample = rows(4);
  at::Tensor loss;
  {
    const auto model = model_of({.name = "toy-model-parallel"});
    loss = model->loss(model->forward(sample.input), sample.target);
  }
  EXPECT_THROW(loss.backward(), std::logic_error);  // Its model is gone.
}

}  // namespace
}  // namespace ddp::train
