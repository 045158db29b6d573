#include "worker/runtime/elastic_worker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "tests/support/elastic_cluster.h"

// Real processes that survive the rounds of their job, with the socket, the memory and the store
// that agents give them.
namespace ddp {
namespace {

using test::ElasticCluster;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kNew = ElasticCluster::kNew;

// How many entries a folder of /proc/self has.
int entries(const char* folder) {
  int count = 0;
  DIR* const handle = ::opendir(folder);
  while (::readdir(handle) != nullptr) ++count;
  ::closedir(handle);
  return count;
}

// Of the memory of this process, what is mapped and shared: that of rounds.
long shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  long count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

// Sums vectors that have something of every rank in every bit until the group fails. Says the sum's
// hash of the first sum of a round, and what remains of the round's things after it.
void sum_for_ever(const ElasticCluster::Say& say) {
  ElasticWorker worker;
  std::int64_t step = 0;
  int most_threads = std::numeric_limits<int>::max();
  for (;;) {
    try {
      auto group = worker.join();
      const std::size_t count = 100'000;
      auto memory = group->allocate(count * sizeof(float));
      auto* values = reinterpret_cast<float*>(memory.get());
      for (bool first = true;; first = false) {
        for (std::size_t i = 0; i < count; ++i) {
          values[i] =
              1.0F / static_cast<float>(1 + i + 7 * static_cast<std::size_t>(group->rank()));
        }
        group->all_reduce({values, count, DType::kF32}, ReduceOp::kSum)->wait();
        ++step;
        if (!first) continue;
        std::size_t hash = 1469598103934665603U;
        for (std::size_t i = 0; i < count; ++i) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, &values[i], sizeof(bits));
          hash = (hash ^ bits) * 1099511628211U;
        }
        say("round " + std::to_string(group->round()) + " rank " + std::to_string(group->rank()) +
            " of " + std::to_string(group->size()) + " sum " + std::to_string(hash));
        worker.committed(step);
      }
    } catch (const CollectiveError& error) {
      say(std::string("failed: ") + error.what());
      worker.leave(step, error);
      // A thread may still be listed when it has been joined.
      const auto threads = [] { return entries("/proc/self/task"); };
      const bool are_gone = test::wait_until([&] { return threads() <= most_threads; });
      most_threads = std::min(most_threads, threads());
      say("left " + (are_gone ? "" : std::to_string(threads()) + " threads, ") + "descriptors " +
          std::to_string(entries("/proc/self/fd")) + " memory " +
          std::to_string(shared_mappings()));
    }
  }
}

// What the worker said of the sum in the present round, without its own rank.
std::string sum_of(ElasticCluster& cluster, int id, int rank, int size) {
  const std::string head = "round " + std::to_string(cluster.round()) + " rank " +
                           std::to_string(rank) + " of " + std::to_string(size) + " sum ";
  const std::string line = cluster.hear(id, "round ");
  EXPECT_THAT(line, StartsWith(head));
  return line.size() > head.size() ? line.substr(head.size())
                                   : "nothing of worker " + std::to_string(id);
}

void expect_sums(ElasticCluster& cluster, const std::vector<int>& ids, std::string& expected) {
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const std::string sum =
        sum_of(cluster, ids[rank], static_cast<int>(rank), static_cast<int>(ids.size()));
    if (expected.empty()) expected = sum;
    EXPECT_EQ(sum, expected) << "rank " << rank << " in round " << cluster.round();
  }
}

TEST(ElasticWorker, SurvivorsGoOnInTheNextRoundWithANewMember) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  ElasticCluster cluster(sum_for_ever);
  auto ids = cluster.begin({{kNew, kNew, kNew}});
  std::string sum;
  expect_sums(cluster, ids, sum);
  for (int turn = 0; turn < 4; ++turn) {
    const std::size_t victim = random() % ids.size();
    ::usleep(static_cast<useconds_t>(random() % 5000));  // sleep: until a random moment
    cluster.kill(ids[victim]);
    for (const int id : ids) {
      if (id == ids[victim]) continue;
      // The survivors see it by themselves: the agents have said nothing yet.
      EXPECT_THAT(cluster.hear(id, "failed: "), HasSubstr("rank " + std::to_string(victim)));
    }
    cluster.end_round(ids);
    ids[victim] = kNew;
    ids = cluster.begin({ids});
    expect_sums(cluster, ids, sum);  // To the bit what it was.
  }
}

TEST(ElasticWorker, RanksAndTheSizeOfTheWorldChange) {
  ElasticCluster cluster(sum_for_ever);
  auto ids = cluster.begin({{kNew, kNew, kNew, kNew}});
  std::string of_four;
  expect_sums(cluster, ids, of_four);
  cluster.kill(ids[1]);
  cluster.kill(ids[2]);
  cluster.end_round(ids);
  // Fewer, in another order, on two nodes.
  const int first = ids[0];
  const int last = ids[3];
  ids = cluster.begin({{last}, {first}});
  std::string of_two;
  expect_sums(cluster, ids, of_two);
  EXPECT_NE(of_two, of_four);
  cluster.end_round(ids, "nodes joined");
  ids = cluster.begin({{first, kNew}, {last, kNew}});
  std::string sum = of_four;
  expect_sums(cluster, ids, sum);
}

TEST(ElasticWorker, AStandbyTakesThePlaceOfTheDead) {
  ElasticCluster cluster(sum_for_ever);
  auto ids = cluster.begin({{kNew, kNew}});
  std::string sum;
  expect_sums(cluster, ids, sum);
  const int standby = cluster.start_standby();
  const auto hello = cluster.await<wire::Hello>(standby);
  EXPECT_EQ(hello.rank, -1);
  EXPECT_EQ(hello.round, kNoRound);
  EXPECT_TRUE(hello.reconfigurable);
  cluster.kill(ids[0]);
  cluster.end_round(ids);
  ids = cluster.begin({{standby, ids[1]}});
  expect_sums(cluster, ids, sum);
}

// The new member never comes: a standby that is stopped and then killed. In which place it is
// decides in which step of setting up the group the others wait for it.
void lose_one_during_recovery(bool on_nodes, std::size_t place) {
  ElasticCluster cluster(sum_for_ever);
  const auto begin = [&](const std::vector<int>& ids) {
    return cluster.begin(on_nodes ? std::vector<std::vector<int>>{{ids[0]}, {ids[1]}, {ids[2]}}
                                  : std::vector<std::vector<int>>{ids});
  };
  auto ids = begin({kNew, kNew, kNew});
  std::string sum;
  expect_sums(cluster, ids, sum);
  cluster.kill(ids[place]);
  cluster.end_round(ids);
  const int never = cluster.start_standby();
  cluster.await<wire::Hello>(never);
  cluster.kill(never, SIGSTOP);
  ids[place] = never;
  ids = begin(ids);
  cluster.kill(never);
  const TimePoint died = Clock::now();
  cluster.end_round(ids);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - died).count(), 20.0);
  ids[place] = kNew;
  ids = begin(ids);
  expect_sums(cluster, ids, sum);
}

TEST(ElasticWorker, ADeathDuringRecoveryEndsThatRoundToo) { lose_one_during_recovery(false, 0); }

TEST(ElasticWorker, ADeathDuringRecoveryIsNotWaitedForBetweenNodes) {
  for (const std::size_t place : {0U, 1U, 2U}) lose_one_during_recovery(true, place);
}

TEST(ElasticWorker, NothingOfARoundStaysInTheProcess) {
  ElasticCluster cluster(sum_for_ever);
  auto ids = cluster.begin({{kNew}, {kNew}});
  std::string first;
  for (int turn = 0; turn < 10; ++turn) {
    std::string sum;
    expect_sums(cluster, ids, sum);
    cluster.end_round(ids, "nodes joined");
    const std::string left = cluster.hear(ids[0], "left ");
    if (first.empty()) first = left;
    EXPECT_EQ(left, first) << "turn " << turn;
    EXPECT_THAT(left, HasSubstr(" memory 0"));
    ids = cluster.begin({{ids[0]}, {ids[1]}});
  }
}

TEST(ElasticWorker, ACommitRequestIsAnsweredAtTheNextCommit) {
  ElasticCluster cluster([](const ElasticCluster::Say& say) {
    ElasticWorker worker;
    auto group = worker.join();
    worker.committed(1);  // Nobody has asked.
    say("ready");
    test::wait_until([&] { return worker.commit_requested(); });
    worker.committed(2);
    say(worker.commit_requested() ? "again" : "once");
  });
  const auto ids = cluster.begin({{kNew}});
  EXPECT_EQ(cluster.hear(ids[0]), "ready");
  cluster.order(ids[0], wire::CommitRequest{0, 1000});
  const auto committed = cluster.await<wire::Committed>(ids[0]);
  EXPECT_EQ(committed.round, 0);
  EXPECT_EQ(committed.step, 2);
  EXPECT_EQ(cluster.hear(ids[0]), "once");
}

TEST(ElasticWorker, AMistakeOfTheProgramIsNotTriedAgain) {
  ElasticCluster cluster([](const ElasticCluster::Say& say) {
    ElasticWorker worker;
    auto group = worker.join();
    std::vector<float> values(static_cast<std::size_t>(4 + group->rank()));
    try {
      group->all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum)->wait();
    } catch (const CollectiveError& error) {
      group.reset();
      EXPECT_EQ(error.code, Errc::kMismatch);
      say("failed");
      worker.leave(-1, error);
      say("left");
    }
  });
  const auto ids = cluster.begin({{kNew, kNew}});
  for (const int id : ids) {
    EXPECT_EQ(cluster.hear(id), "failed");
    EXPECT_THAT(cluster.hear(id), StartsWith("exception: "));
    EXPECT_EQ(cluster.status_of(id), 99);
  }
}

TEST(ElasticWorker, AnAgentThatNeverEndsTheRoundIsGivenUp) {
  ElasticCluster cluster([](const ElasticCluster::Say& say) {
    ElasticWorkerOptions options;
    options.lost_limit = std::chrono::milliseconds(50);
    ElasticWorker worker(options);
    auto group = worker.join();
    say("ready");
    try {
      for (;;) group->barrier()->wait();
    } catch (const CollectiveError& error) {
      group.reset();
      worker.leave(-1, error);
    }
    say("left");
  });
  const auto ids = cluster.begin({{kNew, kNew}});
  for (const int id : ids) EXPECT_EQ(cluster.hear(id), "ready");
  cluster.kill(ids[1]);
  EXPECT_THAT(cluster.hear(ids[0]), StartsWith("exception: "));
}

TEST(ElasticWorker, WithoutAnAgentAFailureIsFinal) {
  ElasticWorker worker;
  EXPECT_FALSE(worker.reconfigurable());
  auto group = worker.join();
  EXPECT_EQ(group->size(), 1);
  group->abort("done with it");
  group.reset();
  const CollectiveError cause("done with it", Errc::kAborted, -1);
  EXPECT_THROW(worker.leave(3, cause), CollectiveError);
}

}  // namespace
}  // namespace ddp
