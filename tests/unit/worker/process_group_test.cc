#include <atomic>
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/inproc.h"
#include "tests/support/worker_world.h"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::failure_of;
using test::LinkKind;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Far above what an abort takes, far below the deadline of the operations that it ends.
constexpr seconds kPrompt{10};

std::vector<std::vector<int>> worlds() { return {{2}, {3}, {1, 1}, {2, 2}, {1, 1, 1}, {2, 1}}; }

// One operation, through which everybody is on return: what comes next cannot fail it.
void run_one(const std::vector<std::shared_ptr<ProcessGroup>>& groups) {
  test::on_ranks(static_cast<int>(groups.size()),
                 [&](Rank rank) { groups[static_cast<std::size_t>(rank)]->barrier()->wait(); });
}

std::vector<float> ones(std::size_t count) { return std::vector<float>(count, 1.0F); }

WorkPtr start_sum(ProcessGroup& group, std::vector<float>& values, OpOptions options = {}) {
  return group.all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum,
                          std::move(options));
}

TEST(ProcessGroup, KnowsItsPlace) {
  const auto groups = test::thread_groups({2, 1});
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    EXPECT_EQ(groups[rank]->rank(), static_cast<Rank>(rank));
    EXPECT_EQ(groups[rank]->size(), 3);
    EXPECT_EQ(groups[rank]->round(), 0);
  }
}

TEST(ProcessGroup, RefusesArgumentsThatMakeNoSense) {
  const auto group = test::thread_groups({1}).front();
  std::int32_t number = 0;
  EXPECT_THROW(group->all_reduce({&number, 1, DType::kI32}, ReduceOp::kAvg), std::invalid_argument);
  EXPECT_THROW(group->all_reduce({nullptr, 1, DType::kI32}, ReduceOp::kSum), std::invalid_argument);
  EXPECT_THROW(group->broadcast({&number, 1, DType::kI32}, 1), std::invalid_argument);
  EXPECT_THROW(group->broadcast({&number, 1, DType::kI32}, -1), std::invalid_argument);
  std::int32_t two[2] = {};
  EXPECT_THROW(group->all_gather({&number, 1, DType::kI32}, {two, 2, DType::kI32}),
               std::invalid_argument);
  EXPECT_THROW(group->all_gather({&number, 1, DType::kI32}, {two, 1, DType::kF32}),
               std::invalid_argument);
  group->barrier()->wait();  // None of them counts as issued.
}

// On the caller's thread, not on the group's, where nobody could catch it.
TEST(ProcessGroup, RefusesMessagesBetweenMoreRanksOfANodeThanTheyAreFor) {
  constexpr auto kTooMany = static_cast<int>(transport::kPairRanks) + 1;
  auto transports = test::make_inproc_transports({kTooMany, 1}, 0);
  // Also the rank whose own node is small.
  for (const int rank : {0, kTooMany}) {
    const auto group =
        runtime::Group::make(std::move(transports[static_cast<std::size_t>(rank)]), 0, {});
    std::vector<float> in(2000 * (kTooMany + 1));
    std::vector<float> out(in.size());
    const Buffer from{in.data(), in.size(), DType::kF32};
    const Buffer to{out.data(), out.size(), DType::kF32};
    try {
      group->all_to_all(from, to, {});
      FAIL() << "rank " << rank << " may issue it";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("all_to_all: between nodes it needs messages, which at "
                                          "most 256 ranks of a node can exchange, but a node has "
                                          "257: start fewer workers"));
    }
  }
}

TEST(ProcessGroup, AbortEndsWhatRunsOnEveryRank) {
  for (const auto& nodes : worlds()) {
    const auto groups = test::thread_groups(nodes);
    const auto started = Clock::now();
    test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      if (rank == group.size() - 1) {
        std::this_thread::sleep_for(milliseconds(30));  // sleep: the others have begun by now
        group.abort("loss is not a number");
        group.abort("a second reason");
      }
      auto values = ones(100'000);
      const CollectiveError error = failure_of([&] {
        const WorkPtr work = start_sum(group, values);
        work->wait();
      });
      EXPECT_EQ(error.code, Errc::kAborted);
      EXPECT_EQ(error.suspect_rank, group.size() - 1);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("loss is not a number"),
                        HasSubstr("rank " + std::to_string(group.size() - 1) + " aborted")));
    });
    EXPECT_LT(Clock::now() - started, kPrompt);
  }
}

TEST(ProcessGroup, AbortReachesRanksThatAreInNoOperation) {
  for (const auto& nodes : worlds()) {
    const auto groups = test::thread_groups(nodes);
    groups.front()->abort("stop");
    test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
      const CollectiveError error =
          failure_of([&] { groups[static_cast<std::size_t>(rank)]->barrier()->wait(); });
      EXPECT_THAT(error.what(), HasSubstr("rank 0 aborted the group: stop"));
    });
  }
}

TEST(ProcessGroup, AbortCrossesNodesWhoseRanksAreIdle) {
  // Rank 1 sits between the rank that aborts and the one that waits, and calls nothing.
  const auto groups = test::thread_groups({1, 1, 1});
  std::thread waiting([&] {
    const CollectiveError error = failure_of([&] { groups[2]->barrier()->wait(); });
    EXPECT_THAT(error.what(), HasSubstr("rank 0 aborted the group"));
  });
  groups[0]->abort("stop");
  const auto started = Clock::now();
  waiting.join();
  EXPECT_LT(Clock::now() - started, kPrompt);
}

TEST(ProcessGroup, FirstCauseIsWhatEveryLaterCallGets) {
  const auto groups = test::thread_groups({2});
  run_one(groups);
  test::on_ranks(2, [&](Rank rank) {
    ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
    std::vector<float> values[3] = {ones(50'000), ones(9), ones(9)};
    if (rank == 0) {
      // The abort may come between any two of them.
      std::vector<WorkPtr> works;
      const auto issue = [&] {
        for (auto& each : values) works.push_back(start_sum(group, each));
      };
      try {
        issue();
      } catch (const CollectiveError& error) {
        EXPECT_STREQ(error.what(), "rank 1 aborted the group: first");
      }
      for (const WorkPtr& work : works) {
        const CollectiveError error = failure_of([&] { work->wait(); });
        EXPECT_STREQ(error.what(), "rank 1 aborted the group: first");
        EXPECT_EQ(error.suspect_rank, 1);
      }
    } else {
      group.abort("first");
    }
    group.abort("second");
    const CollectiveError error = failure_of([&] { group.barrier()->wait(); });
    EXPECT_STREQ(error.what(), "rank 1 aborted the group: first");
  });
}

TEST(ProcessGroup, DeadlineNamesWhoDidNotArrive) {
  for (const auto& nodes : worlds()) {
    const auto groups = test::thread_groups(nodes);
    run_one(groups);
    const Rank absent = groups.front()->size() - 1;
    test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      if (rank == absent) return;
      auto values = ones(10);
      const CollectiveError error = failure_of([&] {
        start_sum(group, values, {milliseconds(500), "bucket 3"})->wait();
      });
      EXPECT_EQ(error.code, Errc::kTimeout);
      EXPECT_THAT(error.what(), HasSubstr("all_reduce #1 (bucket 3): timed out after 500 ms"));
      EXPECT_EQ(error.suspect_rank, absent);
      EXPECT_THAT(error.what(), EndsWith("; not arrived: rank " + std::to_string(absent)));
    });
    // The absent rank learns that the group is over.
    const CollectiveError error =
        failure_of([&] { groups[static_cast<std::size_t>(absent)]->barrier()->wait(); });
    EXPECT_THAT(error.what(), HasSubstr("all_reduce #1 (bucket 3): timed out"));
  }
}

TEST(ProcessGroup, DeadlineOfOneNodeBlamesTheAbsentRank) {
  const auto groups = test::thread_groups({3});
  test::on_ranks(3, [&](Rank rank) {
    if (rank == 1) return;
    const CollectiveError error = failure_of([&] {
      groups[static_cast<std::size_t>(rank)]->barrier({milliseconds(500), ""})->wait();
    });
    EXPECT_EQ(error.suspect_rank, 1);
    EXPECT_THAT(error.what(), EndsWith("; arrived: rank 0, 2; not arrived: rank 1"));
  });
}

// Many at a time, because either the communication thread or the waiter may come first.
TEST(ProcessGroup, AnOperationBehindASlowerOneKeepsItsDeadline) {
  test::on_ranks(24, [](Rank /*turn*/) {
    const auto groups = test::thread_groups({2});
    auto first = ones(10);
    auto second = ones(10);
    const auto started = Clock::now();
    const WorkPtr slow = start_sum(*groups[0], first);
    const WorkPtr quick = start_sum(*groups[0], second, {milliseconds(50), ""});
    const CollectiveError error = failure_of([&] { quick->wait(); });
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("all_reduce #1: timed out after 50 ms"));
    EXPECT_LT(Clock::now() - started, kPrompt);
    failure_of([&] { slow->wait(); });
  });
}

TEST(ProcessGroup, MismatchIsAnErrorOnEveryRankThatNamesBoth) {
  for (const auto& nodes : worlds()) {
    const auto groups = test::thread_groups(nodes);
    run_one(groups);
    test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      auto values = ones(rank == group.size() - 1 ? 11 : 10);
      const CollectiveError error = failure_of([&] {
        // The news may overtake the end of the operation before on a rank that is slow.
        start_sum(group, values)->wait();
      });
      EXPECT_EQ(error.code, Errc::kMismatch);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("calls all_reduce (sum) of 10 f32"),
                                      HasSubstr("rank " + std::to_string(group.size() - 1) +
                                                " calls all_reduce (sum) of 11 f32")));
    });
  }
}

TEST(ProcessGroup, EveryKindOfMismatchIsSeen) {
  float data[16] = {};
  const std::vector<std::function<WorkPtr(ProcessGroup&)>> calls = {
      [&](ProcessGroup& group) {
        return group.all_reduce({data, 4, DType::kF32}, ReduceOp::kSum);
      },
      [&](ProcessGroup& group) {
        return group.all_reduce({data, 4, DType::kF32}, ReduceOp::kAvg);
      },
      [&](ProcessGroup& group) {
        return group.all_reduce({data, 4, DType::kI32}, ReduceOp::kSum);
      },
      [&](ProcessGroup& group) {
        return group.all_reduce({data, 3, DType::kF32}, ReduceOp::kSum);
      },
      [&](ProcessGroup& group) {
        return group.broadcast({data, 4, DType::kF32}, 0);
      },
      [&](ProcessGroup& group) {
        return group.broadcast({data, 4, DType::kF32}, 1);
      },
      [&](ProcessGroup& group) {
        return group.all_gather({data, 4, DType::kF32}, {data + 8, 8, DType::kF32});
      },
      [&](ProcessGroup& group) { return group.barrier(); },
  };
  for (std::size_t a = 0; a < calls.size(); ++a) {
    for (std::size_t b = a + 1; b < calls.size(); ++b) {
      for (const auto& nodes : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
        const auto groups = test::thread_groups(nodes);
        test::on_ranks(2, [&](Rank rank) {
          ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
          const CollectiveError error =
              failure_of([&] { calls[rank == 0 ? a : b](group)->wait(); });
          EXPECT_EQ(error.code, Errc::kMismatch) << a << " against " << b << ": " << error.what();
        });
      }
    }
  }
}

TEST(ProcessGroup, GivingUpTheGroupWithWorkOutstandingFailsTheOthers) {
  for (const auto& nodes : worlds()) {
    auto groups = test::thread_groups(nodes);
    std::vector<WorkPtr> works;
    std::vector<std::vector<float>> values(groups.size(), ones(1000));
    for (std::size_t rank = 0; rank + 1 < groups.size(); ++rank)
      works.push_back(start_sum(*groups[rank], values[rank]));
    groups.front().reset();
    for (const WorkPtr& work : works) {
      const CollectiveError error = failure_of([&] { work->wait(); });
      EXPECT_THAT(error.what(), HasSubstr("rank 0 destroyed the group"));
    }
  }
}

TEST(ProcessGroup, GroupsEndOneByOneWithoutHarm) {
  for (const auto& nodes : worlds()) {
    for (int turn = 0; turn < 20; ++turn) {
      auto groups = test::thread_groups(nodes);
      test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
        auto group = std::move(groups[static_cast<std::size_t>(rank)]);
        auto values = ones(70'000);
        start_sum(*group, values)->wait();
        EXPECT_EQ(values.front(), static_cast<float>(group->size()));
        group.reset();  // At once, while others may still be at it.
      });
    }
  }
}

TEST(ProcessGroup, ALaterGroupUsesTheMemoryOfAnEarlierOne) {
  auto segment = std::move(test::make_segment(2, 5)).value();
  for (int turn = 0; turn < 5; ++turn) {
    auto transports = test::make_inproc_transports({2}, 5, {segment});
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (auto& transport : transports)
      groups.push_back(runtime::Group::make(std::move(transport), 5, {}));
    test::on_ranks(2, [&](Rank rank) {
      for (const std::size_t count : {std::size_t{10}, std::size_t{200'000}, std::size_t{10}}) {
        auto values = ones(count);
        start_sum(*groups[static_cast<std::size_t>(rank)], values)->wait();
        EXPECT_EQ(values.front(), 2.0F);
        EXPECT_EQ(values.back(), 2.0F);
      }
    });
  }
}

TEST(ProcessGroup, WorkOutlivesItsGroup) {
  auto groups = test::thread_groups({2});
  auto left = ones(10);
  auto right = ones(10);
  const WorkPtr one = start_sum(*groups[0], left);
  const WorkPtr other = start_sum(*groups[1], right);
  one->wait();
  other->wait();
  groups.clear();
  EXPECT_TRUE(one->done());
  one->wait();
  EXPECT_EQ(left.front(), 2.0F);
}

TEST(ProcessGroup, SeveralThreadsMayWaitForOneWork) {
  const auto groups = test::thread_groups({2});
  auto left = ones(100'000);
  auto right = ones(100'000);
  const WorkPtr one = start_sum(*groups[0], left);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      one->wait();
      EXPECT_EQ(left.back(), 2.0F);
    });
  }
  start_sum(*groups[1], right)->wait();
  for (std::thread& thread : threads) thread.join();
}

// The order of issue is agreed, but threads other than the issuing one wait, as DDP does it.
TEST(ProcessGroup, AbortWhileEverybodyIsBusyNeverHangs) {
  for (int turn = 0; turn < 30; ++turn) {
    for (const auto& nodes : {std::vector<int>{3}, std::vector<int>{2, 2}}) {
      const auto groups = test::thread_groups(nodes);
      std::atomic<int> failed{0};
      test::on_ranks(test::world_size_of(nodes), [&](Rank rank) {
        ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
        try {
          for (int i = 0;; ++i) {
            auto values = ones(static_cast<std::size_t>(i) * 5'000);
            if (rank == 1 && i == turn % 10) group.abort("enough");
            start_sum(group, values)->wait();
          }
        } catch (const CollectiveError& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank 1 aborted the group: enough"));
          ++failed;
        }
      });
      EXPECT_EQ(failed.load(), test::world_size_of(nodes));
    }
  }
}

}  // namespace
}  // namespace ddp
