// ddp::Trainer in rounds, in processes that come and go.
#include <memory>
#include <set>
#include <string>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/elastic_cluster.h"
#include "tests/torch/trainer_fixture.h"

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

}  // namespace
}  // namespace ddp::test
