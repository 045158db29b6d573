#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_fixture.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/rank_threads.h"
#include "worker/checkpoint/tool/tool.h"
#include "worker/ddp/state/load_tensors.h"

// What is loaded of a checkpoint, and how: parts of a model, other models, files from elsewhere,
// and which rank reads which bytes.
namespace ddp {
namespace {

using nlohmann::json;
using test::GroupPtr;
using test::Net;
using test::run_ranks;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointLoadTest : public test::CheckpointTest {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  // A step of training, then a checkpoint of the model, its optimizer and a value.
  std::string save(Net& net, std::int64_t step = 5) {
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    test::train_step(net, optimizer, step);
    Checkpointer checkpointer(test::at_once(path()), group_);
    checkpointer.add_module("net", net);
    checkpointer.add_optimizer("sgd", optimizer, net);
    checkpointer.add_value(
        "seen", [] { return json(7); }, [](const json&) {});
    EXPECT_TRUE(checkpointer.prepare());
    auto saved = checkpointer.save(step);
    EXPECT_TRUE(saved) << saved.error().message;
    return saved->path;
  }

  Result<LoadReport> load(torch::nn::Module& net, const LoadOptions& options) {
    Checkpointer checkpointer(test::at_once(path()), group_);
    checkpointer.add_module("net", net);
    return checkpointer.load_latest(options);
  }

  std::shared_ptr<ProcessGroup> group_ = ProcessGroup::from_environment();
};

TEST_F(CheckpointLoadTest, NamesChooseTensorsAndLeaveTheRest) {
  Net saved;
  save(saved);
  Net net;
  const at::Tensor own_weight = net.last->weight.detach().clone();
  LoadOptions options;
  options.names = {"net/first.*", "net/norm.running_*"};
  auto loaded = load(net, options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->step, 5);
  EXPECT_THAT(loaded->notes, IsEmpty());
  EXPECT_TRUE(net.first->weight.equal(saved.first->weight));
  EXPECT_TRUE(net.norm->running_mean.equal(saved.norm->running_mean));
  EXPECT_TRUE(net.last->weight.equal(own_weight));
  EXPECT_FALSE(net.conv->weight.equal(saved.conv->weight));
}

TEST_F(CheckpointLoadTest, NamesLeaveOutEverythingButModules) {
  Net saved;
  save(saved);
  Net net;
  Checkpointer checkpointer(test::at_once(path()), group_);
  checkpointer.add_module("net", net);
  checkpointer.add_value(
      "seen", [] { return json(1); }, [](const json&) { FAIL() << "it was not asked for"; });
  checkpointer.add_value(
      "never saved", [] { return json(1); }, [](const json&) {});
  LoadOptions options;
  options.names = {"*"};
  auto loaded = checkpointer.load_latest(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(weights_sha256(net), weights_sha256(saved));
}

TEST_F(CheckpointLoadTest, ANameThatCoversNothingIsAnErrorOrALine) {
  Net saved;
  save(saved);
  Net net;
  const std::string before = weights_sha256(net);
  LoadOptions options;
  options.names = {"net/conv.*", "net/cnov.*"};
  auto refused = load(net, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kMismatch);
  EXPECT_THAT(refused.error().message, HasSubstr("\"net/cnov.*\" covers no tensor"));
  EXPECT_EQ(weights_sha256(net), before);
  options.strict = false;
  auto loaded = load(net, options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_THAT(loaded->notes, ElementsAre(HasSubstr("\"net/cnov.*\" covers no tensor")));
  EXPECT_TRUE(net.conv->weight.equal(saved.conv->weight));
}

TEST_F(CheckpointLoadTest, TensorsAreLoadedWithoutAModelOrAGroup) {
  Net first;
  save(first, 5);
  Net second;
  const std::string newest = save(second, 6);
  auto all = load_tensors(path());
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->step, 6);
  EXPECT_EQ(all->path, newest);
  std::size_t count = 0;
  for (const auto& list : {second.named_parameters(), second.named_buffers()}) {
    count += list.size();
    for (const auto& item : list) {
      const auto found = all->tensors.find("net/" + item.key());
      ASSERT_NE(found, all->tensors.end()) << item.key();
      EXPECT_TRUE(found->second.equal(item.value())) << item.key();
    }
  }
  EXPECT_EQ(all->tensors.size(), count);
  auto older = load_tensors(path(), {.names = {"net/last.*"}, .step = 5});
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_EQ(older->tensors.size(), 2u);
  EXPECT_TRUE(older->tensors.at("net/last.bias").equal(first.last->bias));
}

TEST_F(CheckpointLoadTest, MapLocationPutsEachTensorSomewhere) {
  Net saved;
  save(saved);
  auto loaded =
      load_tensors(path(), {.names = {"net/last.*"}, .map_location = [](std::string_view name) {
                              return at::Device(name.ends_with("bias") ? at::kMeta : at::kCPU);
                            }});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->tensors.at("net/last.bias").device(), at::kMeta);
  EXPECT_EQ(loaded->tensors.at("net/last.weight").device(), at::kCPU);
  // The program's own, not the file's.
  loaded->tensors.at("net/last.weight").zero_();
  EXPECT_FALSE(load_tensors(path())
                   ->tensors.at("net/last.weight")
                   .equal(loaded->tensors.at("net/last.weight")));
}

TEST_F(CheckpointLoadTest, TensorsOfADamagedCheckpointAreLoadedFromTheOneBefore) {
  EXPECT_EQ(load_tensors(path()).error().code, Errc::kNotFound);
  Net first;
  save(first, 5);
  Net second;
  const std::string newest = save(second, 6);
  test::damage(newest + "/shard-00000.safetensors");
  auto loaded = load_tensors(path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->step, 5);
  EXPECT_THAT(loaded->skipped, ElementsAre(HasSubstr(newest + " passed over: ")));
  auto that_one = load_tensors(path(), {.step = 6});
  ASSERT_FALSE(that_one);
  EXPECT_EQ(that_one.error().code, Errc::kNotFound);
  EXPECT_THAT(that_one.error().message, HasSubstr(newest));
  auto unknown = load_tensors(path(), {.names = {"nte/*"}, .step = 5});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("\"nte/*\""));
}

TEST_F(CheckpointLoadTest, AnotherModelIsRefusedOrLoadedAsFarAsItGoes) {
  Net saved;
  save(saved);
  Net wider(20);
  const std::string before = weights_sha256(wider);
  auto refused = load(wider, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kMismatch);
  EXPECT_EQ(weights_sha256(wider), before);

  LoadOptions options;
  options.strict = false;
  auto loaded = load(wider, options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(wider.conv->weight.equal(saved.conv->weight));
  EXPECT_TRUE(wider.norm->running_var.equal(saved.norm->running_var));
  EXPECT_EQ(wider.first->weight.size(0), 20);
  EXPECT_THAT(loaded->notes,
              Contains(HasSubstr("tensor \"module/net/first.weight\" is F32 [12, 144] in the "
                                 "checkpoint")));
  EXPECT_THAT(loaded->notes, Contains(HasSubstr("it stays as it is")));
}

TEST_F(CheckpointLoadTest, WhatOnlyOneSideHasIsAnErrorOrALine) {
  Net saved;
  save(saved);
  struct Other : torch::nn::Module {
    Other() {
      conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
      head = register_module("head", torch::nn::Linear(2, 2));
    }
    torch::nn::Conv2d conv{nullptr};
    torch::nn::Linear head{nullptr};
  } other;
  ASSERT_FALSE(load(other, {}));
  LoadOptions options;
  options.strict = false;
  auto loaded = load(other, options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(other.conv->weight.equal(saved.conv->weight));
  EXPECT_THAT(loaded->notes, Contains(HasSubstr("no tensor \"module/net/head.weight\"")));
  EXPECT_THAT(loaded->notes,
              Contains("the model has no tensor \"module/net/last.bias\" of the checkpoint"));
}

TEST_F(CheckpointLoadTest, OptimizersValuesAndGeneratorsMayBeMissingIfNotStrict) {
  Net saved;
  save(saved);
  Net net;
  torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(0.5));
  Checkpointer checkpointer(test::at_once(path()), group_);
  int seen = 0;
  checkpointer.add_module("net", net);
  checkpointer.add_optimizer("sgd", adam, net);
  checkpointer.add_rng();
  checkpointer.add_value(
      "seen", [] { return json(1); }, [&seen](const json& value) { seen = value.get<int>(); });
  checkpointer.add_value(
      "new", [] { return json(1); }, [](const json&) { FAIL(); });
  ASSERT_FALSE(checkpointer.load_latest());
  EXPECT_EQ(seen, 0);
  LoadOptions options;
  options.strict = false;
  auto loaded = checkpointer.load_latest(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(weights_sha256(net), weights_sha256(saved));
  EXPECT_EQ(static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options()).lr(), 0.5);
  EXPECT_TRUE(adam.state().empty());
  EXPECT_THAT(loaded->notes, Contains(HasSubstr("an optimizer of type \"SGD\"")));
  EXPECT_THAT(loaded->notes, Contains(HasSubstr("no state of the generator \"cpu\"")));
  EXPECT_THAT(loaded->notes, Contains(HasSubstr("no value \"new\"; it stays as it is")));
}

TEST_F(CheckpointLoadTest, TensorsOfTheOptimizerStayWhereTheyAre) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpointer checkpointer(test::at_once(path()), group_);
  checkpointer.add_module("net", net);
  checkpointer.add_optimizer("sgd", optimizer, net);
  checkpointer.add_rng();
  ASSERT_TRUE(checkpointer.prepare());
  test::train_step(net, optimizer, 1);
  ASSERT_TRUE(checkpointer.save(1));
  const std::string saved = test::state_bytes(net, optimizer);
  const at::Tensor momentum =
      static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second)
          .momentum_buffer();
  test::train_step(net, optimizer, 2);
  EXPECT_NE(test::state_bytes(net, optimizer), saved);
  auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(test::state_bytes(net, optimizer), saved);
  bool is_there = false;
  for (const auto& [parameter, state] : optimizer.state()) {
    is_there |=
        static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer().is_same(momentum);
  }
  EXPECT_TRUE(is_there);
}

// A checkpoint that is bad is passed over whatever the options are.
TEST_F(CheckpointLoadTest, DamageIsNoMatterOfStrictness) {
  Net first;
  save(first, 5);
  Net second;
  const std::string newest = save(second, 6);
  test::damage(newest + "/shard-00000.safetensors");
  for (const bool strict : {true, false}) {
    LoadOptions options;
    options.strict = strict;
    Net net;
    auto loaded = load(net, options);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 5);
    EXPECT_THAT(loaded->skipped, ElementsAre(HasSubstr(newest + " passed over: ")));
    EXPECT_EQ(weights_sha256(net), weights_sha256(first));
  }
}

TEST_F(CheckpointLoadTest, AnImportedFileIsLoadedIfNotStrict) {
  Net saved;
  save(saved);
  std::ostringstream out;
  std::ostringstream err;
  ASSERT_EQ(checkpoint::run_tool({"export", path(), file("net.safetensors")}, out, err), 0)
      << err.str();
  ASSERT_EQ(checkpoint::run_tool({"import", file("net.safetensors"), file("other"), "--module",
                                  "net", "--step", "3"},
                                 out, err),
            0)
      << err.str();
  Net net;
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  Checkpointer checkpointer(test::at_once(file("other")), group_);
  checkpointer.add_module("net", net);
  checkpointer.add_optimizer("sgd", optimizer, net);
  ASSERT_FALSE(checkpointer.load_latest());
  LoadOptions options;
  options.strict = false;
  auto loaded = checkpointer.load_latest(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->step, 3);
  EXPECT_EQ(weights_sha256(net), weights_sha256(saved));
}

TEST_F(CheckpointLoadTest, WhatWasLoadedDoesNotChangeWithTheFiles) {
  Net saved;
  const std::string where = save(saved);
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpointer checkpointer(test::at_once(path()), group_);
  checkpointer.add_module("net", net);
  checkpointer.add_optimizer("sgd", optimizer, net);
  checkpointer.add_value(
      "seen", [] { return json(1); }, [](const json&) {});
  ASSERT_TRUE(checkpointer.load_latest());
  const std::string before = test::state_bytes(net, optimizer);
  // Overwritten in place: a tensor over the file would see it.
  for (const std::string& name : test::names_in(where)) {
    const auto bytes = std::filesystem::file_size(where + "/" + name);
    std::ofstream(where + "/" + name) << std::string(bytes, 'x');
  }
  EXPECT_EQ(test::state_bytes(net, optimizer), before);
  test::train_step(net, optimizer, 6);  // Writes into every tensor.
}

TEST_F(CheckpointLoadTest, TellsHowFarItIs) {
  Net saved;
  save(saved);
  Net net;
  LoadOptions options;
  std::vector<LoadProgress> told;
  options.progress = [&told](const LoadProgress& progress) { told.push_back(progress); };
  ASSERT_TRUE(load(net, options));
  EXPECT_THAT(told, IsEmpty());  // It did not take that long.
  options.progress_every = 0;
  ASSERT_TRUE(load(net, options));
  ASSERT_GT(told.size(), 3u);
  for (std::size_t i = 1; i < told.size(); ++i) EXPECT_GT(told[i].bytes, told[i - 1].bytes);
  EXPECT_EQ(told.back().bytes, told.back().total);
}

// Each rank verifies its part of the files; all know when one finds damage.
TEST_F(CheckpointLoadTest, RanksShareTheVerifying) {
  std::vector<std::uint64_t> totals(3);
  std::uint64_t all = 0;
  run_ranks({3}, [&](const GroupPtr& group) {
    Net net;
    Checkpointer checkpointer(test::at_once(path()), group);
    checkpointer.add_module("net", net);
    checkpointer.add_rng();
    ASSERT_TRUE(checkpointer.prepare());
    auto saved = checkpointer.save(1);
    ASSERT_TRUE(saved) << saved.error().message;
    auto newer = checkpointer.save(2);
    ASSERT_TRUE(newer);
    const auto rank = static_cast<std::size_t>(group->rank());
    LoadOptions options;
    options.strict = false;
    options.names = {"nothing of that name"};  // Verified all the same.
    options.progress_every = 0;
    options.progress = [&totals, rank](const LoadProgress& at) { totals[rank] = at.bytes; };
    ASSERT_TRUE(checkpointer.load_latest(options));
    if (rank == 0) {
      for (const std::string& name : test::names_in(newer->path)) {
        if (name != "manifest.json") all += std::filesystem::file_size(newer->path + "/" + name);
      }
      test::damage(newer->path + "/rank-00002.safetensors");
    }
    auto loaded = checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 1);
    EXPECT_THAT(loaded->skipped, ElementsAre(HasSubstr("rank-00002.safetensors")));
  });
  EXPECT_EQ(totals[0] + totals[1] + totals[2], all);
  for (const std::uint64_t total : totals) {
    EXPECT_GT(total, 0u);
    EXPECT_LT(total, all);
  }
}

}  // namespace
}  // namespace ddp
