// ddp::Trainer in rounds, in processes that come and go.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/elastic_cluster.h"
#include "tests/torch/trainer_fixture.h"
#include "worker/ddp/state/checkpointer.h"

namespace ddp::test {
namespace {

using namespace trainer_sample;

// Says what the generator gives next, whenever training begins in a round.
struct Draws final : Callback {
  explicit Draws(const ElasticCluster::Say& of) : say(of) {}
  std::string name() const override { return "Draws"; }
  void on_fit_start(Trainer& /*trainer*/, TrainerModule& /*module*/) override {
    say(fmt::format("draws {}", at::randn({1}).item<float>()));
  }
  const ElasticCluster::Say& say;
};

// Otherwise they would drop the same activations out.
TEST(TrainerElastic, RanksOfAGrownWorldDrawDifferentNumbers) {
  ElasticCluster cluster([](const ElasticCluster::Say& say) {
    at::set_num_threads(1);
    at::manual_seed(1);  // As programs do for their parameters.
    Trainer trainer({.max_epochs = 1'000'000,
                     .callbacks = {std::make_shared<Draws>(say)},
                     .enable_progress_bar = false,
                     .seed = kSeed});
    trainer.fit(std::make_shared<Net>(), loader());
  });
  auto ids = cluster.begin({{ElasticCluster::kNew, ElasticCluster::kNew}});
  for (const int id : ids) EXPECT_THAT(cluster.hear(id, "draws "), testing::StartsWith("draws "));
  cluster.end_round(ids, "two more ranks have come");
  ids = cluster.begin({{ids[0], ids[1], ElasticCluster::kNew, ElasticCluster::kNew}});
  std::set<std::string> drawn;
  for (const int id : ids) drawn.insert(cluster.hear(id, "draws "));
  EXPECT_EQ(drawn.size(), 4U) << testing::PrintToString(drawn);
}

// Its first round ends between a forward and its backward.
struct Interrupted final : Net {
  explicit Interrupted(const ElasticCluster::Say& of) : say(of) {}
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    const at::Tensor loss = Net::training_step(batch, index);
    if (index == 2 && group->round() == 0 && waits) {
      say("waiting");
      std::byte nothing{};
      try {
        group->recv({&nothing, 1, DType::kU8}, (group->rank() + 1) % group->size())->wait();
      } catch (const CollectiveError&) {
        // Backward shall find it out.
      }
    }
    return loss;
  }
  const ElasticCluster::Say& say;
  std::shared_ptr<ProcessGroup> group;
  bool waits = false;
};

// Lends it the group of the round.
struct Lender final : Callback {
  explicit Lender(std::shared_ptr<Interrupted> of) : net(std::move(of)) {}
  std::string name() const override { return "Lender"; }
  void on_fit_start(Trainer& trainer, TrainerModule& /*module*/) override {
    net->group = trainer.group();
  }
  void on_fit_end(Trainer& /*trainer*/, TrainerModule& /*module*/) override { net->group.reset(); }
  std::shared_ptr<Interrupted> net;
};

// The parameters are in bfloat16 when the round ends.
TEST(TrainerElastic, MixedPrecisionSurvivesAKillBeforeBackward) {
  const auto train = [](bool waits) {
    return [waits](const ElasticCluster::Say& say) {
      at::set_num_threads(1);
      const auto net = std::make_shared<Interrupted>(say);
      net->waits = waits;
      Trainer trainer({.precision = "bf16-mixed",
                       .max_epochs = 2,
                       .callbacks = {std::make_shared<Lender>(net)},
                       .enable_progress_bar = false,
                       .seed = kSeed});
      trainer.fit(net, loader());
      say(fmt::format("weights {}", weights_sha256(*net)));
    };
  };
  ElasticCluster undisturbed(train(false));
  auto ids = undisturbed.begin({{ElasticCluster::kNew, ElasticCluster::kNew}});
  const std::string expected = undisturbed.hear(ids[0], "weights ");
  ASSERT_THAT(expected, testing::StartsWith("weights "));
  ElasticCluster cluster(train(true));
  ids = cluster.begin({{ElasticCluster::kNew, ElasticCluster::kNew}});
  for (const int id : ids) ASSERT_EQ(cluster.hear(id, "waiting"), "waiting");
  cluster.kill(ids[1]);
  cluster.end_round(ids);
  ids = cluster.begin({{ids[0], ElasticCluster::kNew}});
  for (const int id : ids) EXPECT_EQ(cluster.hear(id, "weights "), expected);
}

}  // namespace
}  // namespace ddp::test
