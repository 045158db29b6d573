#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/sanitizer.h"
#include "tests/support/worker_world.h"

// One rank makes a different call than the others: all of them learn who called what.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::failure_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Room for the blocks of any call here, of every rank.
struct Memory {
  std::vector<std::byte> in = std::vector<std::byte>(std::size_t{1} << 21);
  std::vector<std::byte> out = std::vector<std::byte>(std::size_t{1} << 21);
  Buffer input(std::size_t count, DType type = DType::kF32) { return {in.data(), count, type}; }
  Buffer output(std::size_t count, DType type = DType::kF32) { return {out.data(), count, type}; }
};

struct Call {
  std::string text;  // How messages name it, or the begin of that.
  std::function<WorkPtr(ProcessGroup&, Memory&)> issue;
};

constexpr DType kI32 = DType::kI32;

Call all_reduce(std::size_t count, DType type, ReduceOp op, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.all_reduce(memory.output(count, type), op);
          }};
}

Call broadcast(std::size_t count, DType type, Rank root, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.broadcast(memory.output(count, type), root);
          }};
}

Call reduce(std::size_t count, Rank root, ReduceOp op, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.reduce(memory.output(count), root, op);
          }};
}

std::size_t all(ProcessGroup& group, std::size_t count) {
  return count * static_cast<std::size_t>(group.size());
}

Call all_gather(std::size_t count, DType type, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.all_gather(memory.input(count, type),
                                    memory.output(all(group, count), type));
          }};
}

// The rank `longer` gives twice as much as the others.
Call all_gatherv(std::size_t count, Rank longer, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            std::vector<std::size_t> counts(static_cast<std::size_t>(group.size()), count);
            counts[static_cast<std::size_t>(longer)] *= 2;
            const std::size_t own = counts[static_cast<std::size_t>(group.rank())];
            return group.all_gatherv(memory.input(own), memory.output(all(group, count) + count),
                                     counts);
          }};
}

Call reduce_scatter(std::size_t count, ReduceOp op, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.reduce_scatter(memory.input(all(group, count)), memory.output(count), op);
          }};
}

Call gather(std::size_t count, Rank root, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.gather(memory.input(count), memory.output(all(group, count)), root);
          }};
}

Call scatter(std::size_t count, Rank root, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.scatter(memory.input(all(group, count)), memory.output(count), root);
          }};
}

Call all_to_all(std::size_t count, DType type, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            return group.all_to_all(memory.input(all(group, count), type),
                                    memory.output(all(group, count), type));
          }};
}

Call all_to_allv(DType type, const std::string& text) {
  return {text, [=](ProcessGroup& group, Memory& memory) {
            const std::vector<std::size_t> counts(static_cast<std::size_t>(group.size()), 7);
            return group.all_to_allv(memory.input(all(group, 7), type), counts,
                                     memory.output(all(group, 7), type), counts);
          }};
}

Call barrier() {
  return {"barrier", [](ProcessGroup& group, Memory& /*memory*/) { return group.barrier(); }};
}

// Neighbours differ in one thing: what is called, how much, of what, reduced how, where to.
std::vector<Call> calls() {
  const ReduceOp sum = ReduceOp::kSum;
  return {
      barrier(),
      all_reduce(40, DType::kF32, sum, "all_reduce (sum) of 40 f32"),
      all_reduce(41, DType::kF32, sum, "all_reduce (sum) of 41 f32"),
      all_reduce(41, DType::kF32, ReduceOp::kMax, "all_reduce (max) of 41 f32"),
      all_reduce(41, kI32, ReduceOp::kMax, "all_reduce (max) of 41 i32"),
      all_reduce(90'000, kI32, ReduceOp::kMax, "all_reduce (max) of 90000 i32"),
      all_reduce(90'000, DType::kF32, ReduceOp::kMax, "all_reduce (max) of 90000 f32"),
      broadcast(90'000, DType::kF32, 0, "broadcast of 90000 f32 from rank 0"),
      broadcast(90'000, DType::kF32, 1, "broadcast of 90000 f32 from rank 1"),
      broadcast(90'000, kI32, 1, "broadcast of 90000 i32 from rank 1"),
      broadcast(40, kI32, 1, "broadcast of 40 i32 from rank 1"),
      reduce(40, 1, sum, "reduce (sum) of 40 f32 to rank 1"),
      reduce(40, 0, sum, "reduce (sum) of 40 f32 to rank 0"),
      reduce(40, 0, ReduceOp::kMin, "reduce (min) of 40 f32 to rank 0"),
      reduce(50'000, 0, ReduceOp::kMin, "reduce (min) of 50000 f32 to rank 0"),
      reduce(50'000, 1, ReduceOp::kMin, "reduce (min) of 50000 f32 to rank 1"),
      reduce(50'000, 1, sum, "reduce (sum) of 50000 f32 to rank 1"),
      all_gather(50'000, DType::kF32, "all_gather of 50000 f32"),
      all_gather(30, DType::kF32, "all_gather of 30 f32"),
      all_gather(30, kI32, "all_gather of 30 i32"),
      all_gatherv(30, 0, "all_gather of "),
      all_gatherv(30, 1, "all_gather of "),
      all_gatherv(50'000, 1, "all_gather of "),
      reduce_scatter(50'001, sum, "reduce_scatter (sum) of 50001 f32"),
      reduce_scatter(50'000, sum, "reduce_scatter (sum) of 50000 f32"),
      reduce_scatter(30, sum, "reduce_scatter (sum) of 30 f32"),
      reduce_scatter(30, ReduceOp::kAvg, "reduce_scatter (avg) of 30 f32"),
      gather(30, 1, "gather of 30 f32 to rank 1"),
      gather(30, 2, "gather of 30 f32 to rank 2"),
      gather(50'000, 2, "gather of 50000 f32 to rank 2"),
      scatter(50'000, 2, "scatter of 50000 f32 from rank 2"),
      scatter(50'000, 0, "scatter of 50000 f32 from rank 0"),
      scatter(60, 0, "scatter of 60 f32 from rank 0"),
      all_to_all(60, DType::kF32, "all_to_all of 60 f32"),
      all_to_all(61, DType::kF32, "all_to_all of 61 f32"),
      all_to_all(61, kI32, "all_to_all of 61 i32"),
      all_to_all(50'000, kI32, "all_to_all of 50000 i32"),
      all_to_allv(kI32, "all_to_all of unequal blocks of i32"),
      all_to_allv(DType::kF32, "all_to_all of unequal blocks of f32"),
      barrier(),
  };
}

class Mismatch : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  int world_size() const { return test::world_size_of(GetParam()); }

  // `usual` on all ranks but `odd`, which calls `other`.
  void expect_mismatch(const Call& usual, const Call& other, Rank odd) const {
    const auto groups = test::thread_groups(GetParam());
    test::on_ranks(world_size(), [&](Rank rank) {
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      Memory memory;
      const CollectiveError error =
          failure_of([&] { (rank == odd ? other : usual).issue(group, memory)->wait(); });
      EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("the ranks disagree"), HasSubstr(" calls " + usual.text),
                        HasSubstr("rank " + std::to_string(odd) + " calls " + other.text)))
          << "on rank " << rank;
    });
  }
};

TEST_P(Mismatch, IsAnErrorOnEveryRankThatNamesWhoCallsWhat) {
  const std::vector<Call> list = calls();
  for (std::size_t i = 0; i + 1 < list.size(); ++i) {
    expect_mismatch(list[i], list[i + 1], static_cast<Rank>(i) % world_size());
  }
}

TEST_P(Mismatch, OfCallsInAnotherOrder) {
  const std::vector<Call> list = calls();
  const Call& first = list[1];
  const Call& second = list[8];
  const auto groups = test::thread_groups(GetParam());
  const Rank odd = world_size() - 1;
  test::on_ranks(world_size(), [&](Rank rank) {
    ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
    Memory memory[2];
    const bool turned = rank == odd;
    const Call& sooner = turned ? second : first;
    const Call& later = turned ? first : second;
    WorkPtr one;
    // The other ranks may have failed the group before either call.
    try {
      one = sooner.issue(group, memory[0]);
    } catch (const CollectiveError&) {
    }
    const CollectiveError of_second = failure_of([&] { later.issue(group, memory[1])->wait(); });
    const CollectiveError of_first =
        failure_of([&] { one ? one->wait() : sooner.issue(group, memory[0])->wait(); });
    EXPECT_EQ(of_first.code, Errc::kMismatch);
    EXPECT_THAT(of_first.what(),
                AllOf(HasSubstr(" calls " + first.text),
                      HasSubstr("rank " + std::to_string(odd) + " calls " + second.text)));
    EXPECT_STREQ(of_second.what(), of_first.what());
  });
}

// The lists of an all_to_allv differ from rank to rank, so only two ranks can tell: one of them
// says so at once, the others learn it then, or when they call the group again.
TEST_P(Mismatch, OfTheListsOfAnAllToAllNamesWhoSendsWhatToWhom) {
  struct Case {
    std::size_t sent;  // By one rank to the next. All the others send what is expected.
    std::size_t expected;
  };
  for (const auto& [sent, expected] : {Case{8, 5}, Case{30'003, 30'000}, Case{3, 0}, Case{0, 3}}) {
    const std::size_t usual = std::min(sent, expected);
    for (Rank sender = 0; sender < world_size(); ++sender) {
      const Rank receiver = (sender + 1) % world_size();
      const auto groups = test::thread_groups(GetParam());
      test::on_ranks(world_size(), [&, sent = sent, expected = expected](Rank rank) {
        ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
        Memory memory;
        std::vector<std::size_t> send(static_cast<std::size_t>(group.size()), usual);
        std::vector<std::size_t> receive = send;
        if (rank == sender) send[static_cast<std::size_t>(receiver)] = sent;
        if (rank == receiver) receive[static_cast<std::size_t>(sender)] = expected;
        const auto total = [](const std::vector<std::size_t>& counts) {
          return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        };
        const CollectiveError error = failure_of([&] {
          group
              .all_to_allv(memory.input(total(send)), send, memory.output(total(receive)), receive)
              ->wait();
          group.barrier()->wait();
        });
        EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("rank " + std::to_string(sender)),
                          HasSubstr("rank " + std::to_string(receiver)),
                          HasSubstr(std::to_string(sent)), HasSubstr(std::to_string(expected))));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Mismatch,
                         ::testing::Values(std::vector<int>{3}, std::vector<int>{10},
                                           std::vector<int>{1, 1, 1}, std::vector<int>{2, 1},
                                           std::vector<int>{2, 2},
                                           std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1}),
                         [](const auto& world) {
                           std::string name = "nodes";
                           for (const int size : world.param) name += "_" + std::to_string(size);
                           return name;
                         });

// Who is missing.
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = "rank ";
  for (const Rank rank : ranks) text += (rank == ranks.front() ? "" : ", ") + std::to_string(rank);
  return text;
}

// Long enough for all that come to reach their call once their threads run.
constexpr milliseconds kLimit(test::kSlowness > 1 ? 2000 : 500);

TEST(Deadline, OfOneNodeListsEverybody) {
  struct Case {
    int size;
    std::vector<Rank> absent;
  };
  for (const Case& each : {Case{2, {1}}, Case{3, {0}}, Case{4, {1, 2}}, Case{4, {0, 3}},
                           Case{10, {0, 9}}, Case{17, {3, 8, 15, 16}}}) {
    const auto groups = test::thread_groups({each.size});
    std::vector<Rank> present;
    for (Rank rank = 0; rank < each.size; ++rank) {
      if (std::find(each.absent.begin(), each.absent.end(), rank) == each.absent.end())
        present.push_back(rank);
    }
    test::on_ranks(each.size, [&](Rank rank) {
      if (std::find(present.begin(), present.end(), rank) == present.end()) return;
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      Memory memory;
      const CollectiveError error = failure_of([&] {
        group.all_reduce(memory.output(90'000), ReduceOp::kSum, {kLimit, "step 7"})->wait();
      });
      EXPECT_EQ(error.code, Errc::kTimeout);
      EXPECT_EQ(error.suspect_rank, each.absent.front());
      EXPECT_EQ(std::string(error.what()),
                "all_reduce #0 (step 7): timed out after " + std::to_string(kLimit.count()) +
                    " ms waiting for all ranks to call it; arrived: " + ranks_text(present) +
                    "; not arrived: " + ranks_text(each.absent));
    });
  }
}

TEST(Deadline, BetweenNodesBlamesWhoIsMissingAndNobodyElse) {
  for (const auto& nodes :
       {std::vector<int>{1, 1}, std::vector<int>{2, 2}, std::vector<int>{1, 1, 1},
        std::vector<int>{2, 1}, std::vector<int>{1, 3}}) {
    const int size = test::world_size_of(nodes);
    for (const std::size_t count : {std::size_t{10}, std::size_t{90'000}}) {
      for (Rank absent = 0; absent < size; ++absent) {
        const auto groups = test::thread_groups(nodes);
        test::on_ranks(size, [&](Rank rank) {
          if (rank == absent) return;
          ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
          Memory memory;
          const CollectiveError error = failure_of([&] {
            group.all_reduce(memory.output(count), ReduceOp::kSum, {kLimit, ""})->wait();
          });
          EXPECT_EQ(error.code, Errc::kTimeout);
          EXPECT_EQ(error.suspect_rank, absent) << error.what();
          EXPECT_THAT(error.what(),
                      ::testing::EndsWith("; not arrived: rank " + std::to_string(absent)));
        });
      }
    }
  }
}

// Where no data comes from the ranks that are missing: nobody is through before all ranks of all
// nodes have called.
TEST(Deadline, HoldsForWhoNeedsNothingOfTheOthers) {
  struct Case {
    std::vector<int> nodes;
    Rank absent;
    Call call;
    collectives::Algorithm in_node;  // Small operations in one shot, or as if they were large.
  };
  const auto broadcast_of = [](Rank root) {
    return broadcast(90'000, DType::kF32, root, "broadcast");
  };
  for (const Case& each : {Case{{2, 1}, 2, broadcast_of(1), collectives::Algorithm::kAuto},
                           Case{{2, 2}, 3, broadcast_of(0), collectives::Algorithm::kAuto},
                           Case{{2, 2}, 2, broadcast_of(1), collectives::Algorithm::kAuto},
                           Case{{2, 1}, 2, barrier(), collectives::Algorithm::kStaged},
                           Case{{2, 2}, 3, barrier(), collectives::Algorithm::kStaged},
                           Case{{2, 1},
                                2,
                                all_reduce(0, DType::kF32, ReduceOp::kSum, "all_reduce"),
                                collectives::Algorithm::kStaged},
                           Case{{2, 1},
                                2,
                                all_gather(0, DType::kF32, "all_gather"),
                                collectives::Algorithm::kStaged}}) {
    const auto groups = test::thread_groups(each.nodes, test::LinkKind::kSocketPair, kLimit);
    const int size = test::world_size_of(each.nodes);
    test::on_ranks(size, [&](Rank rank) {
      if (rank == each.absent) return;
      auto& group = static_cast<runtime::Group&>(*groups[static_cast<std::size_t>(rank)]);
      collectives::CostTable costs;
      costs.forced_in_node = each.in_node;
      group.choose(collectives::Choice(costs));
      Memory memory;
      const CollectiveError error = failure_of([&] { each.call.issue(group, memory)->wait(); });
      EXPECT_EQ(error.code, Errc::kTimeout) << "rank " << rank << ", " << each.call.text;
      EXPECT_EQ(error.suspect_rank, each.absent) << error.what();
    });
  }
}

}  // namespace
}  // namespace ddp
