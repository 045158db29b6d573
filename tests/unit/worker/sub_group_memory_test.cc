#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/worker_world.h"

// The memory of subgroups is reused when all members have left, and not before.
namespace ddp {
namespace {

using GroupPtr = std::shared_ptr<ProcessGroup>;

// Worlds whose arenas can be looked at.
struct World {
  explicit World(const std::vector<int>& nodes) {
    const auto store = std::make_shared<test::HashStore>();
    for (auto& transport : test::connected_transports(nodes, test::LinkKind::kSocketPair)) {
      arenas.push_back(transport->arena());
      groups.push_back(runtime::Group::make(std::move(transport), 0,
                                            test::options_of(std::chrono::seconds(60)),
                                            test::local_meeting(store)));
    }
  }

  std::vector<std::shared_ptr<transport::Arena>> arenas;  // By rank.
  std::vector<GroupPtr> groups;                           // By rank.
};

// Gives whether the sums are right. Many elements go through the slots.
bool adds_up(ProcessGroup& group, std::size_t count) {
  std::vector<float> values(count, static_cast<float>(group.rank() + 1));
  group.all_reduce({values.data(), count, DType::kF32}, ReduceOp::kSum)->wait();
  const auto sum = static_cast<float>(group.size() * (group.size() + 1) / 2);
  return std::all_of(values.begin(), values.end(), [&](float value) { return value == sum; });
}

constexpr std::size_t kFew = 5;
constexpr std::size_t kMany = 70'000;

// One rank makes overlapping sub-groups and keeps some of them for a while, which other ranks do
// not keep.
class Maker {
 public:
  static constexpr std::size_t kKept = 3;

  Maker(ProcessGroup& world, std::uint64_t seed)
      : world_(world), common_(seed), own_(seed + 1 + static_cast<std::uint64_t>(world.rank())) {}

  // Gives whether all went well.
  bool make_one() {
    const std::uint64_t draw = common_();
    const Rank rank = world_.rank();
    const std::size_t count = draw % 8 == 0 ? kMany : kFew;
    GroupPtr group;
    if (draw / 8 % 3 == 0) {
      group = world_.split(rank / 2);
    } else if (draw / 8 % 3 == 1) {
      group = world_.split(rank % 2, -rank);
    } else {
      // All but one.
      std::vector<Rank> list;
      const auto left_out = static_cast<Rank>(draw / 24 % 4);
      for (Rank each = 0; each < 4; ++each) {
        if (each != left_out) list.push_back(each);
      }
      group = world_.new_group(list);
    }
    if (!group) return true;
    const bool right = adds_up(*group, count);
    kept_.push_back(std::move(group));
    while (kept_.size() > kKept || (!kept_.empty() && own_() % 2 == 0)) {
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(own_() % kept_.size()));
    }
    return right;
  }

 private:
  ProcessGroup& world_;
  std::mt19937_64 common_;  // The same numbers on all ranks.
  std::mt19937_64 own_;
  std::vector<GroupPtr> kept_;
};

// Every rank may keep so many that this one made with it; one more is being made.
constexpr std::size_t kMostHeads = 4 * Maker::kKept + 1;

void make_many(const std::vector<int>& nodes, int count) {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  World world(nodes);
  std::vector<std::size_t> before;
  for (const auto& arena : world.arenas) before.push_back(arena->bytes_in_use());
  test::on_ranks(4, [&](Rank rank) {
    const auto own = static_cast<std::size_t>(rank);
    Maker maker(*world.groups[own], seed);
    for (int i = 0; i < count; ++i) {
      const bool right = maker.make_one();
      const std::size_t used = world.arenas[own]->bytes_in_use() - before[own];
      EXPECT_TRUE(right) << "group " << i;
      EXPECT_LE(used, kMostHeads * sizeof(transport::RegionHead)) << "after " << i << " groups";
      if (::testing::Test::HasFailure()) {
        world.groups[own]->abort("a check failed");
        return;
      }
    }
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(world.arenas[rank]->bytes_in_use(), before[rank]) << "rank " << rank;
  }
}

TEST(SubGroupMemory, OfGroupsThatComeAndGoIsBounded) { make_many({4}, 2'000); }

TEST(SubGroupMemory, OfGroupsBetweenNodesIsBounded) { make_many({2, 2}, 200); }

// Rank 0 leaves, rank 1 does not: its last act in the group is an access to rank 0's head.
TEST(SubGroupMemory, IsNotUsedAgainBeforeTheLastMemberLeaves) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  constexpr std::size_t kPieces = 3 * (sizeof(transport::RegionHead) / kPiece + 1);
  constexpr std::byte kMark{0x11};
  World world({3});
  const std::size_t before = world.arenas[0]->bytes_in_use();
  test::on_ranks(3, [&](Rank rank) {
    ProcessGroup& all = *world.groups[static_cast<std::size_t>(rank)];
    GroupPtr group = all.split(0, -rank);
    EXPECT_TRUE(adds_up(*group, kMany));
    if (rank != 1) group.reset();
    all.barrier()->wait();
    std::vector<std::shared_ptr<std::byte>> others;
    if (rank == 0) {
      EXPECT_EQ(world.arenas[0]->bytes_in_use(), before + sizeof(transport::RegionHead));
      for (std::size_t i = 0; i < kPieces; ++i) {
        others.push_back(all.allocate(kPiece));
        ASSERT_NE(others.back(), nullptr);
        std::memset(others.back().get(), static_cast<int>(kMark), kPiece);
      }
    }
    all.barrier()->wait();
    group.reset();
    all.barrier()->wait();
    for (const auto& piece : others) {
      EXPECT_TRUE(std::all_of(piece.get(), piece.get() + kPiece,
                              [&](std::byte value) { return value == kMark; }));
    }
    others.clear();
    if (rank == 0) {
      EXPECT_EQ(world.arenas[0]->bytes_in_use(), before);
    }
    // Made in the same memory, which holds what was left there.
    all.barrier()->wait();
    EXPECT_TRUE(adds_up(*all.split(0, rank), kMany));
  });
}

// Nobody knows who has seen the head.
TEST(SubGroupMemory, StaysIfTheGroupCouldNotBeMade) {
  World world({2});
  const std::size_t before = world.arenas[0]->bytes_in_use();
  test::on_ranks(2, [&](Rank rank) {
    ProcessGroup& all = *world.groups[static_cast<std::size_t>(rank)];
    const std::vector<std::vector<Rank>> lists = {{0}, {0, 1}};
    EXPECT_THROW(all.new_group(lists[static_cast<std::size_t>(rank)]), CollectiveError);
  });
  EXPECT_EQ(world.arenas[0]->bytes_in_use(), before + sizeof(transport::RegionHead));
}

}  // namespace
}  // namespace ddp
