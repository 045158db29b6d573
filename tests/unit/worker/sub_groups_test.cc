#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/running_call.h"
#include "tests/support/worker_world.h"

// Groups within a group: their members, their concurrency, their failures and their end.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::CallMemory;
using test::CallShape;
using test::failure_of;
using test::RunningCall;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using GroupPtr = std::shared_ptr<ProcessGroup>;

// Where what must not happen would show.
constexpr seconds kPrompt{10};

// The members' ranks in `parent`, in the order of `group`.
std::vector<Rank> members_of(ProcessGroup& group, Rank rank_in_parent) {
  std::vector<Rank> members(static_cast<std::size_t>(group.size()), -1);
  group
      .all_gather({&rank_in_parent, 1, DType::kI32}, {members.data(), members.size(), DType::kI32})
      ->wait();
  return members;
}

// One of every operation, small and large, in the group.
void use(ProcessGroup& group, std::uint64_t seed) {
  CallMemory memory(group, std::size_t{4} << 20);
  for (const std::size_t count : {std::size_t{9}, std::size_t{40'000}}) {
    for (int call = 0; call < test::kCalls; ++call) {
      const CallShape shape{static_cast<test::Call>(call),
                            DType::kF32,
                            ReduceOp::kSum,
                            count,
                            static_cast<Rank>(seed % static_cast<std::uint64_t>(group.size())),
                            seed + static_cast<std::uint64_t>(call),
                            false};
      memory.clear();
      const auto answer = test::answer_of(shape, group.size());
      RunningCall(group, shape, answer, memory, (seed + count) % 2 == 0).check();
    }
  }
}

class SubGroups : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  int world_size() const { return test::world_size_of(GetParam()); }
  void on_groups(const std::function<void(ProcessGroup&)>& body) const {
    test::with_groups(GetParam(), body);
  }
};

TEST_P(SubGroups, OfAListHasItsRanksInItsOrder) {
  on_groups([](ProcessGroup& world) {
    const std::vector<std::vector<Rank>> lists = {{0, 1, 2, 3}, {0, 3}, {1, 2}, {1, 2, 3}, {2}, {}};
    for (const auto& list : lists) {
      const GroupPtr group = world.new_group(list);
      const bool member = std::find(list.begin(), list.end(), world.rank()) != list.end();
      ASSERT_EQ(group != nullptr, member);
      if (!member) continue;
      EXPECT_EQ(group->size(), static_cast<int>(list.size()));
      EXPECT_EQ(list[static_cast<std::size_t>(group->rank())], world.rank());
      EXPECT_EQ(members_of(*group, world.rank()), list);
      use(*group, 11);
    }
    use(world, 12);
  });
}

TEST_P(SubGroups, OfASplitAreOrderedByKeyAndThenByRank) {
  struct Case {
    std::array<int, 4> colors;
    std::array<int, 4> keys;
    std::array<std::vector<Rank>, 4> members;  // By rank.
  };
  const std::vector<Case> cases = {
      {{0, 0, 0, 0}, {0, 0, 0, 0}, {{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}}},
      {{0, 0, 0, 0}, {3, 2, 1, 0}, {{{3, 2, 1, 0}, {3, 2, 1, 0}, {3, 2, 1, 0}, {3, 2, 1, 0}}}},
      // The nodes of {2, 2} take turns.
      {{7, 7, 7, 7}, {0, 2, 1, 3}, {{{0, 2, 1, 3}, {0, 2, 1, 3}, {0, 2, 1, 3}, {0, 2, 1, 3}}}},
      {{1, 2, 1, 2}, {0, 0, 0, 0}, {{{0, 2}, {1, 3}, {0, 2}, {1, 3}}}},
      {{1, 2, 1, 2}, {-1, 5, -2, 5}, {{{2, 0}, {1, 3}, {2, 0}, {1, 3}}}},
      {{-1, 4, 4, 4}, {0, 9, 9, -9}, {{{}, {3, 1, 2}, {3, 1, 2}, {3, 1, 2}}}},
      {{1, 2, 3, 4}, {0, 0, 0, 0}, {{{0}, {1}, {2}, {3}}}},
      {{-1, -5, -1, -1}, {0, 0, 0, 0}, {{{}, {}, {}, {}}}},
  };
  on_groups([&](ProcessGroup& world) {
    const auto own = static_cast<std::size_t>(world.rank());
    for (const Case& each : cases) {
      const GroupPtr group = world.split(each.colors[own], each.keys[own]);
      ASSERT_EQ(group != nullptr, !each.members[own].empty());
      if (!group) continue;
      EXPECT_EQ(members_of(*group, world.rank()), each.members[own]);
      use(*group, 21);
    }
  });
}

TEST_P(SubGroups, HaveSubGroupsThatOutliveThem) {
  on_groups([](ProcessGroup& world) {
    GroupPtr outer = world.split(world.rank() == 0 ? 1 : 0, -world.rank());
    GroupPtr inner;
    if (world.rank() != 0) {
      EXPECT_EQ(members_of(*outer, world.rank()), (std::vector<Rank>{3, 2, 1}));
      const std::array<Rank, 2> last_two = {1, 2};
      inner = outer->new_group(last_two);
      ASSERT_EQ(inner != nullptr, world.rank() < 3);
    }
    outer.reset();
    // Memory of a group that has ended is used again; that of `inner` must not be.
    std::vector<std::shared_ptr<std::byte>> others;
    for (int i = 0; i < 8; ++i) {
      others.push_back(world.allocate(std::size_t{1} << 20));
      if (others.back()) std::memset(others.back().get(), 0x11, std::size_t{1} << 20);
    }
    world.barrier()->wait();
    if (!inner) return;
    EXPECT_EQ(members_of(*inner, world.rank()), (std::vector<Rank>{2, 1}));
    use(*inner, 31);
  });
}

TEST(SubGroupOfAGroup, OutlivesIt) {
  auto groups = test::thread_groups({2});
  test::on_ranks(2, [&](Rank rank) {
    GroupPtr world = std::move(groups[static_cast<std::size_t>(rank)]);
    const GroupPtr group = world->split(0, -rank);
    world->barrier()->wait();
    world.reset();
    std::vector<std::shared_ptr<std::byte>> others;
    for (int i = 0; i < 8; ++i) {
      others.push_back(group->allocate(std::size_t{1} << 20));
      ASSERT_NE(others.back(), nullptr);
      std::memset(others.back().get(), 0x11, std::size_t{1} << 20);
    }
    use(*group, 32);
  });
}

TEST_P(SubGroups, WorkAtTheSameTimeFromSeveralThreads) {
  on_groups([](ProcessGroup& world) {
    std::vector<GroupPtr> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(world.split(i == 0 ? 0 : world.rank() / i % 2, i));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      threads.emplace_back([&, i] {
        for (std::uint64_t turn = 0; turn < 6; ++turn) use(*groups[i], 100 * i + turn);
      });
    }
    for (std::uint64_t turn = 0; turn < 6; ++turn) use(world, 1000 + turn);
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(SubGroups, DifferentListsAreAnErrorThatNamesTheRanks) {
  const auto groups = test::thread_groups(GetParam());
  test::on_ranks(world_size(), [&](Rank rank) {
    ProcessGroup& world = *groups[static_cast<std::size_t>(rank)];
    const std::vector<Rank> list = {0, rank == 2 ? 3 : 1};
    const CollectiveError error = failure_of([&] { world.new_group(list); });
    EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr("new_group"), HasSubstr("rank 2")));
    const CollectiveError later = failure_of([&] { world.barrier()->wait(); });
    EXPECT_EQ(later.code, Errc::kMismatch) << later.what();
  });
}

TEST_P(SubGroups, AnotherCallInsteadIsAnErrorThatNamesIt) {
  const auto groups = test::thread_groups(GetParam());
  test::on_ranks(world_size(), [&](Rank rank) {
    ProcessGroup& world = *groups[static_cast<std::size_t>(rank)];
    const CollectiveError error = failure_of([&] {
      const std::array<Rank, 1> list = {0};
      if (rank == 1) {
        world.split(0);
      } else {
        world.new_group(list);
      }
    });
    EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  });
}

TEST(SubGroupLists, MustBeAscendingRanksOfTheGroup) {
  const auto group = test::thread_groups({1}).front();
  for (const auto& list : std::vector<std::vector<Rank>>{{1}, {-1}, {0, 0}}) {
    EXPECT_THROW(group->new_group(list), std::invalid_argument);
  }
  const std::array<Rank, 1> self = {0};
  EXPECT_EQ(group->new_group(self)->size(), 1);
}

TEST_P(SubGroups, FailTogether) {
  const auto groups = test::thread_groups(GetParam());
  const auto started = Clock::now();
  std::vector<GroupPtr> pairs(groups.size());
  std::vector<GroupPtr> alone(groups.size());
  test::on_ranks(world_size(), [&](Rank rank) {
    const auto own = static_cast<std::size_t>(rank);
    pairs[own] = groups[own]->split(rank % 2);
    alone[own] = groups[own]->split(rank);
    groups[own]->barrier()->wait();
  });
  test::on_ranks(world_size(), [&](Rank rank) {
    const auto own = static_cast<std::size_t>(rank);
    if (rank == 3) pairs[own]->abort("enough");
    const auto text = HasSubstr("aborted the group: enough");
    EXPECT_THAT(failure_of([&] {
                  for (;;) pairs[own]->barrier()->wait();
                }).what(),
                text);
    EXPECT_THAT(failure_of([&] { groups[own]->barrier()->wait(); }).what(), text);
    EXPECT_THAT(failure_of([&] { alone[own]->barrier()->wait(); }).what(), text);
    EXPECT_THAT(failure_of([&] { groups[own]->split(0); }).what(), text);
  });
  EXPECT_LT(Clock::now() - started, kPrompt);
}

// As a program does it that makes a group for every step.
TEST(ManySubGroups, AreMadeAndDestroyed) {
  constexpr int kGroups = 500;
  test::with_groups({2}, [](ProcessGroup& world) {
    std::vector<float> large(70'000);
    for (int i = 0; i < kGroups; ++i) {
      const GroupPtr group = world.split(0, i % 2 == 0 ? world.rank() : -world.rank());
      std::fill(large.begin(), large.end(), 1.0F);
      // Now and then one that uses all of its memory.
      const std::size_t count = i % 50 == 0 ? large.size() : 5;
      group->all_reduce({large.data(), count, DType::kF32}, ReduceOp::kSum)->wait();
      ASSERT_EQ(large[count - 1], 2.0F) << i;
    }
  });
}

TEST(ManySubGroups, BetweenNodesAreMadeAndDestroyed) {
  test::with_groups({1, 2}, [](ProcessGroup& world) {
    for (int i = 0; i < 40; ++i) {
      const GroupPtr group = world.split(0, (world.rank() * (i + 1)) % 5);
      float value = 1.0F;
      group->all_reduce({&value, 1, DType::kF32}, ReduceOp::kSum)->wait();
      ASSERT_EQ(value, 3.0F) << i;
    }
  });
}

TEST_P(SubGroups, MonitoredBarrierLetsAllThroughOrNamesAllThatAreMissing) {
  const auto groups = test::thread_groups(GetParam());
  test::on_ranks(world_size(), [&](Rank rank) {
    ProcessGroup& world = *groups[static_cast<std::size_t>(rank)];
    for (int i = 0; i < 5; ++i) world.monitored_barrier(seconds(20));
    if (rank == 1 || rank == 3) return;
    const CollectiveError error = failure_of([&] { world.monitored_barrier(milliseconds(500)); });
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_EQ(error.suspect_rank, 1);
    EXPECT_THAT(error.what(),
                HasSubstr("monitored_barrier: after 500 ms rank 1, 3 have not arrived"));
  });
}

TEST_P(SubGroups, MonitoredBarrierMayStopAtTheFirstThatIsMissing) {
  const auto groups = test::thread_groups(GetParam());
  test::on_ranks(world_size(), [&](Rank rank) {
    if (rank == 2 || rank == 3) return;
    const CollectiveError error = failure_of([&] {
      groups[static_cast<std::size_t>(rank)]->monitored_barrier(milliseconds(500), false);
    });
    EXPECT_THAT(error.what(), HasSubstr("rank 2 has not arrived; there may be more"));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SubGroups,
                         ::testing::Values(std::vector<int>{4}, std::vector<int>{2, 2},
                                           std::vector<int>{1, 3}, std::vector<int>{1, 1, 1, 1}),
                         [](const auto& world) {
                           std::string name = "nodes";
                           for (const int size : world.param) name += "_" + std::to_string(size);
                           return name;
                         });

}  // namespace
}  // namespace ddp
