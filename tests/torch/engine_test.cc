// ddp::initialize against the loop that it replaces, and resuming from its checkpoints.
#include "worker/ddp/engine/engine.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/clip_grad.h"

namespace ddp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::vector<std::int64_t> kWidths = {6, 37, 4};

std::shared_ptr<Mlp> new_model() {
  auto model = std::make_shared<Mlp>(kWidths);
  fill(*model, 3);
  return model;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& input) {
  return torch::mse_loss(output, input.narrow(1, 0, 4).sin());
}

at::Tensor micro_batch(Rank rank, std::int64_t number) {
  return random_tensor({3, 6}, static_cast<std::uint64_t>(100 * (rank + 1) + number));
}

json config(int zero_stage) {
  return {
      {"train_micro_batch_size_per_gpu", 3},
      {"gradient_accumulation_steps", 3},
      {"gradient_clipping", 0.05},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.02}, {"weight_decay", 0.1}}}}},
      {"scheduler",
       {{"type", "WarmupLR"},
        {"params", {{"warmup_max_lr", 0.02}, {"warmup_num_steps", 4}, {"warmup_type", "linear"}}}}},
      {"zero_optimization", {{"stage", zero_stage}}},
      {"steps_per_print", 1000}};
}

void train(Engine<Mlp>& engine, Rank rank, std::int64_t until) {
  while (engine.micro_steps() < until) {
    const at::Tensor input = micro_batch(rank, engine.micro_steps());
    engine.backward(loss_of(engine(input), input));
    engine.step();
  }
}

// One process with the batches of all ranks, each update written out.
std::shared_ptr<Mlp> train_in_one_process(int world, std::int64_t updates) {
  auto model = new_model();
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  for (std::int64_t update = 0; update < updates; ++update) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world; ++rank) {
      for (std::int64_t micro = 0; micro < 3; ++micro) {
        const at::Tensor input = micro_batch(rank, 3 * update + micro);
        (loss_of(model->forward(input), input) / (3.0 * world)).backward();
      }
    }
    clip_grad_norm_(model->parameters(), 0.05);
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(update < 4 ? 0.02 * static_cast<double>(update) / 4 : 0.02);
    }
    optimizer.step();
  }
  return model;
}

TEST(Engine, TrainsAsTheLoopThatItStandsFor) {
  constexpr std::int64_t kUpdates = 7;
  for (const int world : {1, 2, 4}) {
    const auto expected = train_in_one_process(world, kUpdates)->parameters();
    for (const int stage : {0, 1}) {
      run_ranks({world}, [&](const GroupPtr& group) {
        const auto model = new_model();
        auto engine = initialize(model, model->parameters(), config(stage), group);
        EXPECT_EQ(engine.config().train_batch_size, 9 * world);
        train(engine, group->rank(), 3 * kUpdates);
        EXPECT_EQ(engine.global_steps(), kUpdates);
        EXPECT_EQ(engine.lr(), 0.02);
        EXPECT_GT(engine.global_grad_norm().value(), 0.05);
        const auto actual = model->parameters();
        for (std::size_t i = 0; i < actual.size(); ++i) {
          EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-4, 1e-6))
              << world << " ranks, stage " << stage << ", parameter " << i << ": "
              << (actual[i] - expected[i]).abs().max().item<float>();
        }
      });
    }
  }
}

TEST(Engine, GoesOnFromACheckpointWithTheSameBytes) {
  for (const int stage : {0, 1}) {
    const TempDir folder;
    run_ranks({2}, [&](const GroupPtr& group) {
      const Rank rank = group->rank();
      const auto undisturbed = new_model();
      auto whole = initialize(undisturbed, undisturbed->parameters(), config(stage), group);
      train(whole, rank, 18);
      {
        const auto model = new_model();
        auto first = initialize(model, model->parameters(), config(stage), group);
        EXPECT_EQ(first.load_checkpoint(folder.path()), std::nullopt);
        train(first, rank, 9);
        first.save_checkpoint(folder.path(), {{"epoch", 3}});
        first.wait_for_checkpoint();
      }
      const auto model = new_model();
      auto second = initialize(model, model->parameters(), config(stage), group);
      EXPECT_EQ(second.load_checkpoint(folder.path()).value(), (json{{"epoch", 3}}));
      EXPECT_EQ(second.global_steps(), 3);
      EXPECT_EQ(second.micro_steps(), 9);
      train(second, rank, 18);
      EXPECT_EQ(bytes_of(*model), bytes_of(*undisturbed)) << "stage " << stage;
    });
  }
}

// Its batch of 12 takes two backwards of two workers, and four of one.
TEST(Engine, AnotherNumberOfWorkersDoesAllBackwardsOfAnUpdate) {
  json same_batch = config(0);
  same_batch.erase("gradient_accumulation_steps");
  same_batch["train_batch_size"] = 12;
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto model = new_model();
    auto engine = initialize(model, model->parameters(), same_batch, group);
    train(engine, group->rank(), 2);
    EXPECT_EQ(engine.global_steps(), 1);
    engine.save_checkpoint(folder.path());
    engine.wait_for_checkpoint();
  });
  run_ranks({1}, [&](const GroupPtr& group) {
    const auto model = new_model();
    auto engine = initialize(model, model->parameters(), same_batch, group);
    ASSERT_TRUE(engine.load_checkpoint(folder.path()));
    engine.save_checkpoint(folder.path());  // Not between the backwards of one update.
    engine.wait_for_checkpoint();
    train(engine, 0, 5);
    EXPECT_EQ(engine.global_steps(), 1);
    train(engine, 0, 6);
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

TEST(Engine, ComputesInBFloat16AndUpdatesInFull) {
  run_ranks({2}, [](const GroupPtr& group) {
    json settings = config(0);
    settings["bf16"] = {{"enabled", true}};
    const auto model = new_model();
    auto engine = initialize(model, model->parameters(), settings, group);
    const at::Tensor input = micro_batch(group->rank(), 0);
    const at::Tensor output = engine(input);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    engine.backward(loss_of(output.to(at::kFloat), input));
    engine.step();
    EXPECT_EQ(model->parameters()[0].scalar_type(), at::kFloat);
  });
}

// Without clipping, whose norm is summed in another order.
TEST(Engine, StageOneInBFloat16IsTheSameTrainingAndGoesOn) {
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto run = [&](int stage, std::int64_t from, std::int64_t until) {
      json settings = config(stage);
      settings["bf16"] = {{"enabled", true}};
      settings["gradient_clipping"] = 0;
      const auto model = new_model();
      auto engine = initialize(model, model->parameters(), settings, group);
      if (from > 0) {
        EXPECT_TRUE(engine.load_checkpoint(folder.path()).has_value());
        EXPECT_EQ(engine.micro_steps(), from);
      }
      while (engine.micro_steps() < until) {
        const at::Tensor input = micro_batch(group->rank(), engine.micro_steps());
        engine.backward(loss_of(engine(input).to(at::kFloat), input));
        engine.step();
      }
      if (until == 9) {
        engine.save_checkpoint(folder.path());
        engine.wait_for_checkpoint();
      }
      return bytes_of(*model);
    };
    const std::string expected = run(0, 0, 18);
    EXPECT_EQ(run(1, 0, 18) == expected, true);
    run(1, 0, 9);
    EXPECT_EQ(run(1, 9, 18) == expected, true);
    EXPECT_EQ(run(0, 9, 18) == expected, true);
  });
}

TEST(Engine, TakesAnOptimizerOfOnesOwn) {
  const TempDir folder;
  const std::string path = folder.write(
      "c.json", R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 1})");
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto model = new_model();
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    auto engine = initialize(model, sgd, path, group);
    EXPECT_EQ(&engine.optimizer(), &sgd);
    const std::string before = bytes_of(*model);
    train(engine, group->rank(), 1);
    EXPECT_NE(bytes_of(*model), before);
    EXPECT_EQ(engine.lr(), 0.1);
  });
}

TEST(Engine, SaysWhatIsWrong) {
  const auto complaint = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const std::exception& wrong) {
      return wrong.what();
    }
    return "accepted";
  };
  run_ranks({1}, [&](const GroupPtr& group) {
    const auto model = new_model();
    json settings = config(0);
    settings["fp16"] = {{"enabled", true}};
    EXPECT_THAT(complaint([&] { initialize(model, model->parameters(), settings, group); }),
                HasSubstr("fp16.enabled"));
    settings = config(0);
    settings.erase("optimizer");
    EXPECT_THAT(complaint([&] { initialize(model, model->parameters(), settings, group); }),
                HasSubstr("has no optimizer"));
    EXPECT_THAT(complaint([&] { initialize(model, {}, config(0), group); }),
                HasSubstr("no parameters"));
    EXPECT_THAT(complaint([&] {
                  initialize(model, model->parameters(), std::string("/none.json"), group);
                }),
                HasSubstr("/none.json"));
    auto engine = initialize(model, model->parameters(), config(0), group);
    EXPECT_THAT(complaint([&] { engine.step(); }), HasSubstr("needs a backward()"));
    train(engine, 0, 1);
    const TempDir folder;
    EXPECT_THAT(complaint([&] { engine.save_checkpoint(folder.path()); }),
                HasSubstr("between the backwards of one update"));
    train(engine, 0, 3);
    EXPECT_THAT(complaint([&] { engine.save_checkpoint("/proc/none"); }), HasSubstr("/proc/none"));
  });
}

TEST(InitDistributed, GivesTheGroupThatThereIs) {
  const auto first = init_distributed();
  EXPECT_EQ(first->size(), 1);
  EXPECT_EQ(init_distributed(), first);
}

}  // namespace
}  // namespace ddp::test
