#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tests/support/elastic_cluster.h"
#include "worker/ddp/diloco/diloco.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/run_elastic.h"

// DiLoCo workers are killed between two communications, during one, or anywhere else, and the
// training ends with the bytes of one that lost no worker.
namespace ddp {
namespace {

using test::ElasticCluster;

constexpr std::int64_t kDiLoCoSteps = 40;

struct DiLoCoNet : torch::nn::Module {
  DiLoCoNet()
      : hidden(register_module("hidden", torch::nn::Linear(8, 16))),
        output(register_module("output", torch::nn::Linear(16, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return output(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden;
  torch::nn::Linear output;
};

at::Tensor inputs_of(Rank rank, std::int64_t step) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * (rank + 1) + step));
  return at::randn({8, 8}, generator);
}

// What has the group ends with the round, however it ends.
struct Leave {
  DiLoCo& diloco;
  ~Leave() { diloco.leave(); }
};

// In this round, rank 1 stops behind synchronize(), for its killer.
constexpr Round kLastRound = 3;

void train_by_diloco(const DiLoCoOptions& options, const ElasticCluster::Say& say) {
  at::set_num_threads(1);
  at::manual_seed(1);
  DiLoCoNet net;
  torch::optim::AdamW inner(net.parameters(), torch::optim::AdamWOptions(0.01));
  DiLoCo diloco(net, inner, options);
  ElasticState state;
  state.set_commit_pace({.every = 1});
  diloco.add_to(state);
  ElasticWorker worker;
  run_elastic(worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Leave leave{diloco};
    diloco.enter(group);
    state.add_comm_hook("diloco", diloco.own_state());
    state.restore();
    diloco.resume();
    while (diloco.steps() < kDiLoCoSteps) {
      const at::Tensor input = inputs_of(group->rank(), diloco.steps());
      diloco.zero_grad();
      torch::nn::functional::mse_loss(net.forward(input), input.narrow(1, 0, 4).sin()).backward();
      diloco.step();
      state.commit_if_due(diloco.steps());
      say(fmt::format("step {} of round {}", diloco.steps(), group->round()));
    }
    diloco.synchronize();
    say(fmt::format("weights {}", weights_sha256(net)));
    if (group->round() == kLastRound && group->rank() == 1) ::pause();
    group->barrier()->wait();
  });
}

TEST(DiLoCoElastic, WhoeverIsKilledTheBytesStayTheSame) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const DiLoCoOptions& options :
       {DiLoCoOptions{.sync_every = 8}, DiLoCoOptions{.sync_every = 8,
                                        .fragments = 2,
                                        .fragment_sync_delay = 3,
                                        .fragment_update_alpha = 0.5}}) {
    const auto body = [&options](const ElasticCluster::Say& say) { train_by_diloco(options, say); };
    std::string expected;
    {
      ElasticCluster cluster(body);
      const auto ids =
          cluster.begin({{ElasticCluster::kNew, ElasticCluster::kNew, ElasticCluster::kNew}});
      expected = cluster.hear(ids[0], "weights ");
    }
    ElasticCluster cluster(body);
    auto ids = cluster.begin({{ElasticCluster::kNew, ElasticCluster::kNew, ElasticCluster::kNew}});
    cluster.lose(ids, {0}, "step 3 ", random);
    cluster.lose(ids, {2}, "step 9 ", random);
    cluster.lose(ids, {1, 2}, "step 22 ", random);  // One survivor.
    cluster.lose(ids, {1}, "weights ", random);     // The others synchronize again.
    for (const int id : ids) {
      EXPECT_EQ(cluster.hear(id, "weights "), expected);
      EXPECT_EQ(cluster.status_of(id), 0);
    }
  }
}

}  // namespace
}  // namespace ddp
