// More nodes than are all linked from the beginning.
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/wait/wait_interrupt.h"
#include "tests/support/hash_store.h"
#include "tests/support/on_ranks.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/rank_board.h"
#include "worker/transport/topology.h"

namespace ddp {
namespace {

using std::chrono::seconds;
using test::LinkKind;
using ::testing::HasSubstr;

transport::Topology of_single_ranks(int nodes, Rank rank) {
  return {std::vector<int>(static_cast<std::size_t>(nodes), 1), rank};
}

TEST(Topology, OfManyNodesEachBeginsWithAFewLinks) {
  for (const int nodes : {2, 5, 16, 17, 31, 32, 33, 100, 1000}) {
    SCOPED_TRACE(nodes);
    for (const Rank rank : {0, 1, nodes / 2, nodes - 1}) {
      const transport::Topology place = of_single_ranks(nodes, rank);
      std::set<int> linked;
      for (int node = 0; node < nodes; ++node) {
        if (node == rank) continue;
        if (place.begins_linked(node)) linked.insert(node);
        EXPECT_EQ(place.begins_linked(node), of_single_ranks(nodes, node).begins_linked(rank));
        EXPECT_EQ(place.beats_to(node), of_single_ranks(nodes, node).beats_to(rank));
        EXPECT_LE(place.beats_to(node), place.begins_linked(node));
      }
      // Bruck's rounds.
      for (int distance = 1; distance < nodes; distance *= 2) {
        EXPECT_TRUE(linked.contains((rank + distance) % nodes)) << distance;
        EXPECT_TRUE(linked.contains((rank - distance + nodes) % nodes)) << distance;
      }
      const auto few = nodes <= 16 ? static_cast<std::size_t>(nodes - 1) : std::size_t{20};
      EXPECT_LE(linked.size(), few);
    }
  }
}

class ManyNodes : public ::testing::Test {
 protected:
  static constexpr int kNodes = 19;
  const std::vector<int> nodes_ = std::vector<int>(kNodes, 1);
  static std::size_t links_of(transport::Transport& transport) {
    std::size_t links = 0;
    for (int node = 0; node < kNodes; ++node) links += transport.link(node) != nullptr ? 1 : 0;
    return links;
  }
};

class ManyNodesOver : public ManyNodes, public ::testing::WithParamInterface<LinkKind> {};

TEST_P(ManyNodesOver, MakeTheOtherLinksWhenAnOperationNeedsThem) {
  auto transports = test::connected_transports(nodes_, GetParam());
  std::vector<transport::Transport*> seen;
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (auto& transport : transports) {
    seen.push_back(transport.get());
    groups.push_back(runtime::Group::make(std::move(transport), 0, test::options_of(seconds(60))));
  }
  const auto all_reduce = [&](std::size_t count) {
    test::on_ranks(kNodes, [&](Rank rank) {
      std::vector<float> values(count, static_cast<float>(rank));
      groups[static_cast<std::size_t>(rank)]
          ->all_reduce({values.data(), count, DType::kF32}, ReduceOp::kSum)
          ->wait();
      EXPECT_EQ(values, std::vector<float>(count, kNodes * (kNodes - 1) / 2.0F));
    });
  };
  test::on_ranks(kNodes, [&](Rank rank) {
    auto& group = *groups[static_cast<std::size_t>(rank)];
    group.barrier()->wait();
    std::vector<float> values(100'000, rank == 5 ? 7.0F : 0.0F);
    group.broadcast({values.data(), values.size(), DType::kF32}, 5)->wait();
    EXPECT_EQ(values.back(), 7.0F);
  });
  all_reduce(100);      // Small.
  all_reduce(500'000);  // A ring.
  for (const auto& transport : seen) EXPECT_LT(links_of(*transport), kNodes - 1);
  all_reduce(10'000);
  for (const auto& transport : seen) EXPECT_EQ(links_of(*transport), kNodes - 1);
  all_reduce(10'000);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ManyNodesOver,
                         ::testing::Values(LinkKind::kTcp, LinkKind::kEncrypted),
                         [](const auto& kind) { return std::string(test::name_of(kind.param)); });

// Its cause goes from neighbour to neighbour.
TEST_F(ManyNodes, AnAbortEndsTheWaitForTheOtherLinks) {
  auto transports = test::connected_transports(nodes_, LinkKind::kTcp);
  test::on_ranks(kNodes,
                 [&](Rank rank) { transports[static_cast<std::size_t>(rank)]->start_watch({}); });
  test::on_ranks(kNodes, [&](Rank rank) {
    transport::Transport& own = *transports[static_cast<std::size_t>(rank)];
    if (rank == 7) return own.raise_abort({Errc::kMismatch, 7, "rank 7 gives up"});
    const TimePoint begin = Clock::now();
    const Outcome failure = own.make_all_links(begin + seconds(300));
    EXPECT_LT(Clock::now() - begin, seconds(60));
    EXPECT_TRUE(failure || own.topology().begins_linked(7));
    if (failure) {
      EXPECT_EQ(failure->text, "rank 7 gives up");
      EXPECT_EQ(failure->code, Errc::kMismatch);
    }
  });
}

TEST(RankBoard, EveryRankGetsAllTexts) {
  constexpr int kRanks = 5;
  const std::vector<std::string> told = {"", "1:x", "two\nlines", std::string(3000, ':'),
                                         std::string("a\0b", 3)};
  const auto store = std::make_shared<test::HashStore>();
  test::on_ranks(kRanks, [&](Rank rank) {
    runtime::RankBoard board(test::local_meeting(store), kRanks, "a test",
                             Clock::now() + seconds(30));
    std::vector<std::string> all;
    const auto failure =
        board.exchange("/told", rank, kRanks, told[static_cast<std::size_t>(rank)], all);
    EXPECT_FALSE(failure) << failure->text;
    EXPECT_EQ(all, told);
    // Two of them tell something, and all get it.
    std::vector<std::string> two;
    EXPECT_FALSE(board.exchange("/two", rank % 2 == 0 && rank < 4 ? rank / 2 : -1, 2,
                                std::to_string(rank), two));
    EXPECT_EQ(two, (std::vector<std::string>{"0", "2"}));
  });
}

TEST(RankBoard, AMissingRankAndAnotherVersionAreNamed) {
  const auto store = std::make_shared<test::HashStore>();
  const auto exchange = [&](int index, int count, std::chrono::milliseconds limit) {
    runtime::RankBoard board(test::local_meeting(store), count, "a test", Clock::now() + limit);
    board.expect("told");
    std::vector<std::string> all;
    return board.exchange("/told", index, count, "text", all);
  };
  EXPECT_TRUE(exchange(2, 3, std::chrono::milliseconds(20)));
  const auto missing = exchange(0, 3, std::chrono::milliseconds(20));
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->suspect, 1);
  EXPECT_THAT(missing->text, HasSubstr("rank 1 did not arrive"));
  for (const char* list : {"", "4:text", "4:text4:text4:text4:text", "4:text4:text9:text", "x"}) {
    ASSERT_TRUE(store->set("test/told/all", list));
    const auto other = exchange(1, 3, seconds(30));
    ASSERT_TRUE(other) << list;
    EXPECT_EQ(other->code, Errc::kProtocol);
    EXPECT_THAT(other->text, HasSubstr("different versions"));
  }
}

TEST(RankBoard, ManyMissingRanksAreNamed) {
  const auto store = std::make_shared<test::HashStore>();
  for (int rank = 0; rank < 200; ++rank) {
    if (rank == 3 || rank == 128 || (rank >= 190 && rank < 192)) continue;
    ASSERT_TRUE(store->set("test/here/" + std::to_string(rank), ""));
  }
  runtime::RankBoard board(test::local_meeting(store), 200, "a test", Clock::now());
  board.expect("here");
  std::string value;
  const auto missing = board.read("/none", value);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->suspect, 3);
  EXPECT_THAT(missing->text, HasSubstr("of 200 ranks, rank 3, 128, 190, 191 did not arrive"));
}

TEST(WaitInterrupt, OneWithinAnotherCountsToo) {
  bool outer_gives_up = false;
  bool inner_gives_up = false;
  const WaitInterrupt outer([&] { return outer_gives_up; });
  {
    const WaitInterrupt inner([&] { return inner_gives_up; });
    EXPECT_FALSE(WaitInterrupt::raised());
    outer_gives_up = true;
    EXPECT_TRUE(WaitInterrupt::raised());
    outer_gives_up = false;
    inner_gives_up = true;
    EXPECT_TRUE(WaitInterrupt::raised());
  }
  EXPECT_FALSE(WaitInterrupt::raised());
  EXPECT_TRUE(WaitInterrupt::set());
}

TEST(WaitInterrupt, OneOfOperationsCountsAroundOneOfSettingUp) {
  bool gives_up = false;
  const WaitInterrupt outer([&] { return gives_up; }, WaitInterrupt::Covers::kOperationsToo);
  const WaitInterrupt inner([] { return true; });
  EXPECT_TRUE(WaitInterrupt::set_for_operations());
  EXPECT_FALSE(WaitInterrupt::raised_in_operation());
  gives_up = true;
  EXPECT_TRUE(WaitInterrupt::raised_in_operation());
}

}  // namespace
}  // namespace ddp
