#include "worker/ddp/state/checkpointer.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_fixture.h"
#include "tests/torch/checkpoint_model.h"

// One process: what is accepted, what is restored, and what a failure leaves behind.
namespace ddp {
namespace {

using nlohmann::json;
using test::Net;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CheckpointerTest : public test::CheckpointTest {
 protected:
  Checkpointer make(int keep = 3) { return Checkpointer(test::at_once(path(), keep), group_); }
};

TEST_F(CheckpointerTest, AnEmptyFolderHasNothingToLoad) {
  Net net;
  const std::string before = weights_sha256(net);
  Checkpointer checkpointer = make();
  checkpointer.add_module("net", net);
  auto without_folder = checkpointer.load_latest();
  ASSERT_TRUE(without_folder);
  EXPECT_EQ(without_folder->step, -1);
  ASSERT_TRUE(checkpointer.prepare());
  auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->step, -1);
  EXPECT_THAT(test::names_in(path()), IsEmpty());
  EXPECT_EQ(weights_sha256(net), before);
}

TEST_F(CheckpointerTest, SaysWhatItLoadedAndKeepsTheNewest) {
  Net net;
  Checkpointer checkpointer = make(2);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  for (const std::int64_t step : {10, 20, 30}) {
    auto saved = checkpointer.save(step, step / 10);
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(saved->path, path() + "/step-00000000" + std::to_string(step));
    EXPECT_THAT(checkpointer.warnings(), IsEmpty());
  }
  EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000020", "step-0000000030"));
  auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->step, 30);
  EXPECT_EQ(loaded->epoch, 3);
  EXPECT_EQ(loaded->world_size, 1);
  EXPECT_EQ(loaded->path, path() + "/step-0000000030");
}

TEST_F(CheckpointerTest, ADamagedOneIsPassedOverAndTheOlderOneUsed) {
  Net net;
  Checkpointer checkpointer = make();
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(1));
  const std::string first = weights_sha256(net);
  {
    const torch::NoGradGuard no_grad;
    net.last->weight.add_(1);
  }
  ASSERT_TRUE(checkpointer.save(2));
  ASSERT_TRUE(checkpointer.save(3));
  test::damage(path() + "/step-0000000003/shard-00000.safetensors");
  test::damage(path() + "/step-0000000002/manifest.json");
  auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->step, 1);
  ASSERT_THAT(loaded->skipped, SizeIs(2));
  EXPECT_THAT(loaded->skipped[0], HasSubstr("step-0000000003 passed over: the checksum of "));
  EXPECT_THAT(loaded->skipped[1], HasSubstr("step-0000000002 passed over: "));
  EXPECT_EQ(weights_sha256(net), first);
  // The resumed run writes step 2 again, over the damaged one.
  auto again = checkpointer.save(2);
  ASSERT_TRUE(again);
  EXPECT_EQ(checkpointer.load_latest()->path, again->path);
}

TEST_F(CheckpointerTest, AllDamagedIsNothingToLoadWithALineEach) {
  Net net;
  Checkpointer checkpointer = make();
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(1));
  test::damage(path() + "/step-0000000001/shard-00000.safetensors");
  auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->step, -1);
  EXPECT_THAT(loaded->skipped, SizeIs(1));
}

struct Odd : torch::nn::Module {
  explicit Odd(std::uint64_t seed) {
    at::Generator dice = at::detail::createCPUGenerator(seed);
    const auto bits = [&dice](at::ScalarType type, const std::vector<std::int64_t>& shape) {
      return torch::rand(shape, dice).mul(3).floor().to(type);
    };
    for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kHalf, at::kBFloat16,
                            at::kInt, at::kFloat, at::kDouble, at::kLong}) {
      const std::string name = at::toString(type);
      register_buffer(name, bits(type, {3, 2}));
      register_buffer(name + "_scalar", bits(type, {}));
      register_buffer(name + "_empty", bits(type, {2, 0}));
    }
    register_buffer("transposed", torch::rand({4, 3}, dice).t());
    register_buffer("channels_last",
                    torch::rand({2, 3, 4, 4}, dice).contiguous(at::MemoryFormat::ChannelsLast));
    register_buffer("strided", torch::rand({8}, dice).slice(0, 0, 8, 3));
    shared = register_parameter("one", torch::rand({3}, dice));
    register_parameter("two", shared);
    register_buffer("undefined", torch::Tensor());
  }
  torch::Tensor shared;
};

TEST_F(CheckpointerTest, EveryTypeShapeAndLayoutComesBack) {
  Odd saved(1);
  Checkpointer saver = make();
  saver.add_module("odd", saved);
  ASSERT_TRUE(saver.prepare());
  auto path = saver.save(1);
  ASSERT_TRUE(path) << path.error().message;

  Odd loaded(2);
  const auto strides = loaded.named_buffers()["channels_last"].strides().vec();
  ASSERT_NE(weights_sha256(loaded), weights_sha256(saved));
  Checkpointer loader = make();
  loader.add_module("odd", loaded);
  auto report = loader.load_latest();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(weights_sha256(loaded), weights_sha256(saved));
  EXPECT_EQ(loaded.named_buffers()["channels_last"].strides().vec(), strides);
  EXPECT_EQ(loaded.named_parameters()["two"].data_ptr(), loaded.shared.data_ptr());
}

TEST_F(CheckpointerTest, ATypeThatCannotBeStoredIsNamed) {
  struct Complex : torch::nn::Module {
    Complex() { register_buffer("wave", torch::zeros({2}, torch::kComplexFloat)); }
  } module;
  Checkpointer checkpointer = make();
  checkpointer.add_module("odd", module);
  ASSERT_TRUE(checkpointer.prepare());
  auto saved = checkpointer.save(1);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(saved.error().message, HasSubstr("\"module/odd/wave\""));
  EXPECT_THAT(test::names_in(path()), IsEmpty());
}

TEST_F(CheckpointerTest, ValuesComeBackBitForBit) {
  const json value = {{"epoch", 3},
                      {"third", 1.0 / 3},
                      {"loss", {std::nan(""), -std::numeric_limits<double>::infinity(), -0.0}},
                      {"text", "é\n"}};
  json loaded;
  Checkpointer checkpointer = make();
  checkpointer.add_value(
      "v", [&] { return value; }, [&](const json& v) { loaded = v; });
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(1));
  ASSERT_TRUE(checkpointer.load_latest());
  EXPECT_EQ(loaded["epoch"], 3);
  EXPECT_EQ(loaded["third"].get<double>(), 1.0 / 3);
  EXPECT_TRUE(std::isnan(loaded["loss"][0].get<double>()));
  EXPECT_EQ(loaded["loss"][1].get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::signbit(loaded["loss"][2].get<double>()));
  EXPECT_EQ(loaded["text"], "é\n");
}

TEST_F(CheckpointerTest, AThrowingValueFailsTheCallAndChangesNothing) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  int counter = 1;
  bool saving_fails = false;
  bool loading_fails = false;
  Checkpointer checkpointer = make();
  checkpointer.add_module("net", net);
  checkpointer.add_optimizer("main", optimizer, net);
  checkpointer.add_rng();
  checkpointer.add_value(
      "counter", [&] { return json(counter); }, [&](const json& v) { counter = v.get<int>(); });
  checkpointer.add_value(
      "fragile",
      [&]() -> json {
        if (saving_fails) throw std::runtime_error("no sampler");
        return 1;
      },
      [&](const json&) {
        if (loading_fails) throw std::runtime_error("no such epoch");
      });
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(1));

  saving_fails = true;
  auto saved = checkpointer.save(2);
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().message, HasSubstr("\"fragile\" failed: no sampler"));
  EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000001"));
  saving_fails = false;

  counter = 5;
  test::train_step(net, optimizer, 0);
  const std::string before = test::state_bytes(net, optimizer);
  loading_fails = true;
  auto loaded = checkpointer.load_latest();
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("\"fragile\" failed: no such epoch"));
  EXPECT_EQ(counter, 5);
  EXPECT_EQ(test::state_bytes(net, optimizer), before);
  loading_fails = false;
  ASSERT_TRUE(checkpointer.load_latest());
  EXPECT_EQ(counter, 1);
}

TEST_F(CheckpointerTest, AnotherModelIsAMismatchThatNamesTheTensorAndChangesNothing) {
  Net net(12);
  Checkpointer saver = make();
  saver.add_module("net", net);
  ASSERT_TRUE(saver.prepare());
  ASSERT_TRUE(saver.save(1));

  const auto mismatch = [&](torch::nn::Module& other) -> std::string {
    const std::string before = weights_sha256(other);
    Checkpointer loader = make();
    loader.add_module("net", other);
    auto loaded = loader.load_latest();
    EXPECT_FALSE(loaded);
    EXPECT_EQ(weights_sha256(other), before);
    if (loaded) return "";
    EXPECT_EQ(loaded.error().code, Errc::kMismatch);
    return loaded.error().message;
  };
  Net wider(13);
  EXPECT_THAT(mismatch(wider), HasSubstr("\"module/net/first.weight\" is F32 [12, 144] in the "
                                         "checkpoint and float32 [13, 144]"));
  Net doubles(12);
  doubles.to(torch::kDouble);
  EXPECT_THAT(mismatch(doubles), HasSubstr("in the model"));
  Net more(12);
  more.register_buffer("extra", torch::zeros({1}));
  EXPECT_THAT(mismatch(more), HasSubstr("no tensor \"module/net/extra\""));
  Net fewer(12);
  fewer.unregister_module("last");
  EXPECT_THAT(mismatch(fewer), HasSubstr("the model has no tensor \"module/net/last."));
}

TEST_F(CheckpointerTest, AnotherOptimizerIsAMismatchThatChangesNothing) {
  Net net;
  torch::optim::Adam adam(net.parameters());
  test::train_step(net, adam, 0);
  Checkpointer saver = make();
  saver.add_optimizer("main", adam, net);
  ASSERT_TRUE(saver.prepare());
  ASSERT_TRUE(saver.save(1));

  const auto mismatch = [&](torch::optim::Optimizer& other, const std::string& name) {
    const std::string before = test::state_bytes(net, other);
    Checkpointer loader = make();
    loader.add_optimizer(name, other, net);
    auto loaded = loader.load_latest();
    EXPECT_FALSE(loaded);
    EXPECT_EQ(test::state_bytes(net, other), before);
    return loaded ? "" : loaded.error().message;
  };
  torch::optim::SGD sgd(net.parameters(), 0.1);
  EXPECT_THAT(mismatch(sgd, "main"), HasSubstr("type \"Adam\", the program one of SGD"));
  torch::optim::Adam fewer(net.last->parameters());
  EXPECT_THAT(mismatch(fewer, "main"), HasSubstr("group 0 has other parameters"));
  torch::optim::Adam groups({torch::optim::OptimizerParamGroup(net.last->parameters()),
                             torch::optim::OptimizerParamGroup(net.first->parameters())});
  EXPECT_THAT(mismatch(groups, "main"), HasSubstr("1 parameter groups in the checkpoint, 2"));
  torch::optim::Adam same(net.parameters());
  EXPECT_THAT(mismatch(same, "another"), HasSubstr("no optimizer \"another\""));
}

TEST_F(CheckpointerTest, WhatIsNotRegisteredIsIgnoredAndNoted) {
  Net net;
  torch::optim::Adam adam(net.parameters());
  Checkpointer saver = make();
  saver.add_module("net", net);
  saver.add_optimizer("main", adam, net);
  saver.add_value(
      "v", [] { return json(1); }, [](const json&) {});
  ASSERT_TRUE(saver.prepare());
  ASSERT_TRUE(saver.save(1));
  Net copy;
  Checkpointer loader = make();
  loader.add_module("net", copy);
  auto loaded = loader.load_latest();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(weights_sha256(copy), weights_sha256(net));
  EXPECT_THAT(loaded->notes,
              ElementsAre(HasSubstr("optimizer \"main\""), HasSubstr("value \"v\"")));
}

TEST_F(CheckpointerTest, RefusesWhatItCannotKeep) {
  Net net;
  torch::optim::LBFGS lbfgs(net.parameters());
  torch::optim::SGD foreign({torch::zeros({3})}, 0.1);
  Checkpointer checkpointer = make();
  checkpointer.add_module("net", net);
  const auto reason = [](auto call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(reason([&] { checkpointer.add_optimizer("o", lbfgs, net); }),
              HasSubstr("torch::optim::LBFGS"));
  EXPECT_THAT(reason([&] { checkpointer.add_optimizer("o", foreign, net); }),
              HasSubstr("float32 [3]"));
  EXPECT_THAT(reason([&] { checkpointer.add_module("net", net); }),
              HasSubstr("registered already"));
  EXPECT_THAT(reason([&] { checkpointer.add_module("a/b", net); }), HasSubstr("\"a/b\""));
  EXPECT_THAT(reason([&] { checkpointer.add_value("", nullptr, nullptr); }), HasSubstr("empty"));
  EXPECT_THAT(reason([&] { Checkpointer({"", 3}, group_); }), HasSubstr("no name"));
  EXPECT_THAT(reason([&] { Checkpointer({"x", -1}, group_); }), HasSubstr("-1"));
  auto negative = checkpointer.save(-5);
  ASSERT_FALSE(negative);
  EXPECT_THAT(negative.error().message, HasSubstr("step -5"));
}

TEST_F(CheckpointerTest, AFolderThatCannotBeWrittenIsFoundOutByPrepare) {
  folder_.write("file", "x");
  Checkpointer checkpointer({(folder_.path() / "file/ckpt").string(), 3}, group_);
  auto prepared = checkpointer.prepare();
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, Errc::kIo);
  EXPECT_THAT(prepared.error().message, HasSubstr("Not a directory"));
}

struct Tiny : torch::nn::Module {
  explicit Tiny(const char* name = "weight") {
    register_parameter(name, torch::tensor({{1.5f, -2.0f}}));
    register_parameter("bias", torch::tensor({0.25f}));
    register_buffer("steps", torch::tensor(std::int64_t{7}));
    register_buffer("none", torch::zeros({0, 3}, torch::kBool));
  }
};

TEST(WeightsSha256, IsWhatTheDescriptionSays) {
  // From Python's hashlib over the bytes that checkpointer.h describes.
  EXPECT_EQ(weights_sha256(Tiny()),
            "9db0ceaa9401abfcf30c6e2bbdfb932f4f4a6103236eaa266a71fbf225884fe6");
}

TEST(WeightsSha256, EveryPartCounts) {
  const std::string base = weights_sha256(Tiny());
  EXPECT_NE(weights_sha256(Tiny("other")), base);
  const torch::NoGradGuard no_grad;
  Tiny value;
  value.named_parameters()["bias"].add_(1e-7f);
  EXPECT_NE(weights_sha256(value), base);
  Tiny buffer;
  buffer.named_buffers()["steps"].add_(1);
  EXPECT_NE(weights_sha256(buffer), base);
  Tiny shape;
  shape.named_parameters()["weight"].set_data(torch::tensor({1.5f, -2.0f}));
  EXPECT_NE(weights_sha256(shape), base);
  Tiny type;
  type.named_buffers()["steps"].set_data(torch::tensor(7.0));
  EXPECT_NE(weights_sha256(type), base);
}

}  // namespace
}  // namespace ddp
