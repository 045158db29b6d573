#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/support/elastic_cluster.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_sync.h"
#include "worker/ddp/state/run_elastic.h"

// Trainings whose processes are killed while they run. They end with the bytes of a training that
// lost no process.
namespace ddp {
namespace {

using test::ElasticCluster;
using ::testing::StartsWith;

constexpr int kNew = ElasticCluster::kNew;
constexpr std::int64_t kSamples = 960;
constexpr std::int64_t kBatch = 8;

struct Net : torch::nn::Module {
  Net()
      : hidden(register_module("hidden", torch::nn::Linear(16, 32))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        output(register_module("output", torch::nn::Linear(32, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return output(dropout(torch::relu(hidden(x)))); }
  torch::nn::Linear hidden;
  torch::nn::Dropout dropout;
  torch::nn::Linear output;
};

struct Settings {
  std::string hook;               // As --comm-hook takes it.
  std::int64_t commit_every = 1;  // As CommitPace's.
  int wait_at_step = -1;          // Rank 0 says so before it commits this, and waits for its end.
  int wait_in_round = -1;         // Nobody makes a step in this round.
  std::size_t own_bytes = 0;
};

// Until another rank is lost.
void wait_for_the_end(ProcessGroup& group) {
  std::byte nothing{};
  group.recv({&nothing, 1, DType::kU8}, (group.rank() + 1) % group.size())->wait();
}

// What a program of a library user looks like. Every rank says each step, in the end the weights.
void train(const Settings& settings, const ElasticCluster::Say& say) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const at::Tensor inputs = at::randn({kSamples, 16});
  const at::Tensor targets = inputs.narrow(1, 0, 4).sin();
  auto net = std::make_shared<Net>();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::int64_t position = 0;
  std::int64_t step = 0;
  double loss_sum = 0;
  std::int64_t samples = 0;
  ElasticState state;
  state.set_commit_pace({.every = settings.commit_every});
  state.add_module("net", *net);
  state.add_optimizer("sgd", optimizer, *net);
  state.add_rng();
  state.add_value("position", position);
  state.add_value("step", step);
  state.add_value("loss", loss_sum, true);
  state.add_sum("samples", samples);
  std::string own(settings.own_bytes, 'a');
  if (!own.empty()) state.add_value("own", own, true);
  ElasticWorker worker;
  at::manual_seed(100 + static_cast<std::uint64_t>(worker.variable_or("RANK", 0)));
  run_elastic(worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallelOptions options;
    options.rebuild_buckets = settings.hook.empty();
    DistributedDataParallel<Net> ddp(net, group, options);
    if (!settings.hook.empty()) {
      std::shared_ptr<CommHook> hook = make_comm_hook_from_text(settings.hook, group);
      ddp.register_comm_hook(hook);
      state.add_comm_hook("hook", hook);
    }
    say(fmt::format("round {} rank {} of {} from {}", group->round(), group->rank(), group->size(),
                    position));
    if (group->round() == settings.wait_in_round) wait_for_the_end(*group);
    const std::int64_t joint = kBatch * group->size();
    while (position + joint <= kSamples) {
      optimizer.zero_grad();
      const std::int64_t mine = position + kBatch * group->rank();
      const at::Tensor loss = torch::nn::functional::mse_loss(
          ddp.forward(inputs.narrow(0, mine, kBatch)), targets.narrow(0, mine, kBatch));
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      if (!own.empty())
        own[static_cast<std::size_t>(step)] = static_cast<char>('b' + group->rank());
      position += joint;
      samples += kBatch;
      ++step;
      if (step == settings.wait_at_step && group->rank() == 0 && group->round() == 0) {
        say("waiting");
        for (;;) ::pause();
      }
      state.commit_if_due(step);
      say(fmt::format("step {} of round {}", step, group->round()));
    }
    std::int64_t all_samples = samples;
    group->all_reduce({&all_samples, 1, DType::kI64}, ReduceOp::kSum)->wait();
    say(fmt::format("weights {} loss {:.17g} own {} samples {} of {}", weights_sha256(*net),
                    loss_sum, std::hash<std::string>()(own), all_samples, position));
    group->barrier()->wait();
  });
}

struct Outcome {
  std::vector<std::string> weights;  // Of each rank: "weights ... loss ...".
};

Outcome undisturbed(const Settings& settings, const std::vector<std::vector<int>>& nodes) {
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  Outcome outcome;
  for (const int id : cluster.begin(nodes)) outcome.weights.push_back(cluster.hear(id, "weights "));
  return outcome;
}

void expect_same_end(ElasticCluster& cluster, const std::vector<int>& ids,
                     const Outcome& expected) {
  ASSERT_EQ(ids.size(), expected.weights.size());
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    EXPECT_EQ(cluster.hear(ids[rank], "weights "), expected.weights[rank]) << "rank " << rank;
    EXPECT_EQ(cluster.status_of(ids[rank]), 0);
  }
}

void lose(ElasticCluster& cluster, std::vector<int>& ids, const std::vector<std::size_t>& victims,
          int step, std::mt19937& random) {
  cluster.lose(ids, victims, fmt::format("step {} ", step), random);
}

struct Case {
  const char* name;
  Settings settings;
};
class Elastic : public ::testing::TestWithParam<Case> {};

TEST_P(Elastic, WhoeverIsKilledTheBytesStayTheSame) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const Settings& settings = GetParam().settings;
  const Outcome expected = undisturbed(settings, {{kNew, kNew, kNew}});
  EXPECT_THAT(expected.weights[0], StartsWith("weights "));
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew, kNew, kNew}});
  lose(cluster, ids, {0}, 3, random);
  lose(cluster, ids, {2}, 10, random);
  lose(cluster, ids, {1, 2}, 20, random);  // One survivor.
  expect_same_end(cluster, ids, expected);
}

constexpr const char* kPowerSgd = "powersgd:rank=2,start_iter=2";
INSTANTIATE_TEST_SUITE_P(Hooks, Elastic,
                         ::testing::Values(Case{"None", {}}, Case{"PowerSgd", {kPowerSgd}},
                                           Case{"Every3", {"", 3}},
                                           Case{"PowerSgdEvery7", {kPowerSgd, 7}},
                                           Case{"Every20", {"", 20}}, Case{"Measured", {"", 0}}),
                         [](const auto& test) { return test.param.name; });

TEST(ElasticRun, AStepIsCommittedByAllOrByNone) {
  const Outcome expected = undisturbed({}, {{kNew}, {kNew}});
  // Rank 0 dies between step 7 and its commit; rank 1 has its part of the commit.
  Settings settings;
  settings.wait_at_step = 7;
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew}, {kNew}});
  EXPECT_EQ(cluster.hear(ids[0], "waiting"), "waiting");
  EXPECT_EQ(cluster.hear(ids[1], "step 6 "), "step 6 of round 0");
  cluster.kill(ids[0]);
  cluster.end_round(ids);
  ids = cluster.begin({{kNew}, {ids[1]}});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(cluster.hear(ids[rank], "round 1 "),
              fmt::format("round 1 rank {} of 2 from {}", rank, 6 * 2 * kBatch));
  }
  expect_same_end(cluster, ids, expected);
}

// So much that only one other rank keeps a copy.
TEST(ElasticRun, LargeStateOfARankSurvivesWithItsBuddy) {
  Settings settings;
  settings.own_bytes = 600'000;
  const Outcome expected = undisturbed(settings, {{kNew, kNew, kNew}});
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew, kNew, kNew}});
  std::mt19937 random(1);
  lose(cluster, ids, {2}, 3, random);
  lose(cluster, ids, {0}, 10, random);
  expect_same_end(cluster, ids, expected);
}

// The one that has just come is all that is left of the round before: it has been given enough.
class ElasticAgain : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ElasticAgain, ASecondLossIsSurvivedBeforeAnythingIsCommittedAgain) {
  Settings settings;
  settings.own_bytes = GetParam();
  const Outcome expected = undisturbed(settings, {{kNew}, {kNew}});
  settings.wait_in_round = 1;
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew}, {kNew}});
  std::mt19937 random(1);
  lose(cluster, ids, {1}, 3, random);
  for (const int id : ids) EXPECT_THAT(cluster.hear(id, "round 1 "), StartsWith("round 1 "));
  cluster.kill(ids[0]);
  cluster.end_round(ids);
  ids = cluster.begin({{kNew}, {ids[1]}});
  expect_same_end(cluster, ids, expected);
}

INSTANTIATE_TEST_SUITE_P(Bytes, ElasticAgain, ::testing::Values(0, 600'000));

TEST(ElasticRun, WithARankAndItsBuddyTheStateIsLostAndAllRanksSaySo) {
  Settings settings;
  settings.own_bytes = 600'000;
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew, kNew, kNew}});
  std::mt19937 random(1);
  lose(cluster, ids, {0, 1}, 3, random);
  for (const int id : ids) {
    EXPECT_THAT(cluster.hear(id, "exception: "), ::testing::HasSubstr("too many ranks were lost"));
    EXPECT_EQ(cluster.status_of(id), 99);
  }
}

class ElasticSizes : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ElasticSizes, TheWorldShrinksAndGrowsWithoutLosingASample) {
  Settings settings;
  settings.own_bytes = GetParam();
  ElasticCluster cluster([&](const auto& say) { train(settings, say); });
  auto ids = cluster.begin({{kNew, kNew, kNew}});
  (void)cluster.hear(ids[0], "step 5 ");
  cluster.kill(ids[1]);
  cluster.end_round(ids);
  ids = cluster.begin({{ids[2], ids[0]}});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string line =
        cluster.hear(ids[rank], fmt::format("round 1 rank {} of 2 from ", rank));
    ASSERT_FALSE(line.empty());
    const std::int64_t from = std::stoll(line.substr(line.rfind(' ')));
    EXPECT_EQ(from % (3 * kBatch), 0);  // A whole step of the three.
    EXPECT_GE(from, 5 * 3 * kBatch);
  }
  (void)cluster.hear(ids[0], "step 9 ");
  cluster.end_round(ids, "a node joined");
  ids = cluster.begin({{ids[0], ids[1]}, {kNew}});
  std::string weights;
  for (const int id : ids) {
    const std::string line = cluster.hear(id, "weights ");
    const std::string hash = line.substr(0, line.find(" loss"));
    if (weights.empty()) weights = hash;
    EXPECT_EQ(hash, weights);
    const auto counted = line.rfind(" samples ");
    ASSERT_NE(counted, std::string::npos) << line;
    const std::int64_t samples = std::stoll(line.substr(counted + 9));
    EXPECT_EQ(line.substr(counted), fmt::format(" samples {0} of {0}", samples));
    EXPECT_EQ(cluster.status_of(id), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, ElasticSizes, ::testing::Values(0, 600'000));

TEST(ElasticRun, AProgramsOwnExceptionEndsItOnAllRanks) {
  ElasticCluster cluster([](const auto& say) {
    ElasticState state;
    std::int64_t value = 0;
    state.add_value("value", value);
    run_elastic(state, [&](const std::shared_ptr<ProcessGroup>& group) {
      say("in");
      if (group->rank() == 0) throw std::runtime_error("no more data");
      for (;;) state.commit();
    });
  });
  const auto ids = cluster.begin({{kNew, kNew}});
  const auto error = cluster.await<wire::WorkerError>(ids[0]);
  EXPECT_EQ(error.message, "no more data");
  EXPECT_FALSE(error.secondary);
  EXPECT_EQ(cluster.status_of(ids[0]), 99);
  cluster.end_round({ids[1]});  // It parks.
}

TEST(ElasticRun, RanksThatRegisterDifferentStateAreToldSo) {
  ElasticCluster cluster([](const auto&) {
    ElasticState state;
    std::int64_t value = 0;
    ElasticWorker worker;
    state.add_value(worker.variable("RANK") == "0" ? "a" : "b", value);
    run_elastic(worker, state, [](const auto&) {});
  });
  const auto ids = cluster.begin({{kNew, kNew}});
  for (const int id : ids) {
    EXPECT_THAT(cluster.hear(id),
                ::testing::HasSubstr("has registered different state from rank 0"));
  }
}

TEST(ElasticBuddies, AreOnAnotherNodeWhereThereIsOne) {
  EXPECT_EQ(elastic::buddies_of({0, 0, 0}), (std::vector<Rank>{1, 2, 0}));
  EXPECT_EQ(elastic::buddies_of({0, 0, 1, 1}), (std::vector<Rank>{2, 3, 0, 1}));
  const std::vector<int> uneven = {0, 0, 0, 1, 2, 2};
  const auto buddies = elastic::buddies_of(uneven);
  for (std::size_t rank = 0; rank < uneven.size(); ++rank) {
    EXPECT_NE(uneven[static_cast<std::size_t>(buddies[rank])], uneven[rank]) << rank;
  }
}

TEST(ElasticKeepers, AreTheRankAndItsBuddyOrAll) {
  // Of a world of five, three ranks are left, on as many nodes.
  elastic::Holding::Item commit;
  commit.key = {2, 4};
  commit.world_size = 5;
  commit.parts = {0, 1, 2, 3, 4};
  commit.part_bytes.assign(5, 1000);
  std::vector<elastic::Holding> holdings(3);
  for (int rank = 0; rank < 3; ++rank) holdings[static_cast<std::size_t>(rank)].node = rank;
  holdings[1].items = {commit};
  const std::vector<std::vector<Rank>> all(5, {0, 1, 2});
  EXPECT_EQ(elastic::keepers_of(holdings, commit), all);
  holdings[1].items[0].part_bytes.assign(5, elastic::PartExchange::kAllLimit);
  const std::vector<std::vector<Rank>> few = {{0, 1}, {1, 2}, {0, 2}, {0, 1}, {0, 1, 2}};
  EXPECT_EQ(elastic::keepers_of(holdings, commit), few);
  commit.has_hooks = true;  // They take the mean of all.
  EXPECT_EQ(elastic::keepers_of(holdings, commit), all);
}

TEST(ElasticChoice, IsTheNewestCommitThatIsWhole) {
  const auto item = [](Round round, std::int64_t serial, std::vector<Rank> parts) {
    elastic::Holding::Item result;
    result.key = {round, serial};
    result.world_size = 2;
    result.part_bytes.assign(parts.size(), 8);
    result.parts = std::move(parts);
    return result;
  };
  // Rank 1 of the last world is gone and had committed 5 of round 2 by itself.
  std::vector<elastic::Holding> holdings(2);
  holdings[0].items = {item(2, 4, {0, 1}), item(2, 5, {0})};
  EXPECT_EQ(elastic::choose_commit(holdings).commit->key, (elastic::CommitKey{2, 4}));
  // A spare that slept since round 1 changes nothing.
  holdings[1].items = {item(1, 9, {0, 1})};
  EXPECT_EQ(elastic::choose_commit(holdings).commit->key, (elastic::CommitKey{2, 4}));
  holdings[1].items = {item(2, 5, {1})};
  EXPECT_EQ(elastic::choose_commit(holdings).commit->key, (elastic::CommitKey{2, 5}));
  holdings[0].items = {item(2, 5, {0})};
  holdings[1].items = {};
  const auto choice = elastic::choose_commit(holdings);
  EXPECT_FALSE(choice.commit);
  EXPECT_TRUE(choice.trained);
}

}  // namespace
}  // namespace ddp
