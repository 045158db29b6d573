// OpOptions::on_done: who is told that an operation is done, when, and on which thread.
#include <atomic>
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/worker_world.h"

namespace ddp {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

// Ranks in one memory, and ranks on nodes of their own.
class OnDone : public testing::TestWithParam<std::vector<int>> {
 protected:
  std::vector<std::shared_ptr<ProcessGroup>> groups_ = test::thread_groups(GetParam());
  int size() const { return static_cast<int>(groups_.size()); }
  ProcessGroup& group(Rank rank) { return *groups_[static_cast<std::size_t>(rank)]; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, OnDone,
                         testing::Values(std::vector<int>{3}, std::vector<int>{1, 1}));

Buffer of(float& value) { return {&value, 1, DType::kF32}; }

OpOptions telling(std::function<void(std::exception_ptr)> listener, bool synchronous = false) {
  OpOptions options;
  options.synchronous = synchronous;
  options.on_done = std::move(listener);
  return options;
}

TEST_P(OnDone, IsCalledOnceForEachOperationAndMessage) {
  test::on_ranks(size(), [&](Rank rank) {
    std::atomic<int> told{0};
    const auto count = [&](const std::exception_ptr& failure) {
      EXPECT_EQ(failure, nullptr);
      ++told;
    };
    float value = 1;
    float sent = 1;  // Not `value`: messages do not wait for operations.
    float received = 0;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(
          group(rank).all_reduce(of(value), ReduceOp::kSum, telling(count, i % 3 == 0)));
    }
    const Rank right = (rank + 1) % size();
    const Rank left = (rank + size() - 1) % size();
    works.push_back(group(rank).recv(of(received), left, 0, telling(count)));
    works.push_back(group(rank).send(of(sent), right, 0, telling(count)));
    for (const WorkPtr& work : works) work->wait();
    while (told < 22) std::this_thread::yield();
    group(rank).barrier()->wait();
    EXPECT_EQ(told, 22);
  });
}

// Two levels deep, while another operation is queued behind: no thread is left that must run it.
TEST_P(OnDone, MayIssueOperationsAndWaitForThem) {
  test::on_ranks(size(), [&](Rank rank) {
    std::promise<float> result;
    float first = 1;
    float second = 1;
    float third = 1;
    const auto innermost = [&](const std::exception_ptr&) { result.set_value(third); };
    const auto inner = [&](const std::exception_ptr&) {
      std::promise<void> done;
      group(rank).all_reduce(of(third), ReduceOp::kSum,
                             telling([&](const std::exception_ptr& failure) {
                               innermost(failure);
                               done.set_value();
                             }));
      done.get_future().wait();
    };
    const auto outer = [&](const std::exception_ptr&) {
      std::promise<void> done;
      group(rank).all_reduce(of(second), ReduceOp::kSum,
                             telling([&](const std::exception_ptr& failure) {
                               inner(failure);
                               done.set_value();
                             }));
      done.get_future().wait();
    };
    group(rank).all_reduce(of(first), ReduceOp::kSum, telling(outer));
    auto future = result.get_future();
    ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
    EXPECT_EQ(future.get(), static_cast<float>(size()));
    group(rank).barrier()->wait();
  });
}

// The group's thread learns that callers run their operations themselves, and then leaves them
// time.
TEST_P(OnDone, ComesWithoutAWaiterAlsoAfterManyThatWaited) {
  test::on_ranks(size(), [&](Rank rank) {
    float value = 1;
    for (const bool starts : {false, true, false}) {
      for (int i = 0; i < 20; ++i) group(rank).all_reduce(of(value), ReduceOp::kMax)->wait();
      // Shared: a listener that is told too late must not write to a stack that is gone.
      const auto done = std::make_shared<std::promise<void>>();
      const WorkPtr work =
          group(rank).all_reduce(of(value), ReduceOp::kMax,
                                 telling([done](const std::exception_ptr&) { done->set_value(); }));
      if (starts) work->start();
      ASSERT_EQ(done->get_future().wait_for(20s), std::future_status::ready);
    }
    group(rank).barrier()->wait();
  });
}

TEST_P(OnDone, MayHoldUpACallerWhileTheGroupsThreadRunsWhatItWaitsFor) {
  test::on_ranks(size(), [&](Rank rank) {
    float first = 1;
    float second = 1;
    std::promise<void> issued;
    std::promise<void> done;
    std::promise<void> told;
    const WorkPtr work = group(rank).all_reduce(
        of(first), ReduceOp::kSum, telling([&](const std::exception_ptr&) {
          issued.get_future().wait();
          EXPECT_EQ(done.get_future().wait_for(20s), std::future_status::ready);
          told.set_value();
        }));
    group(rank).all_reduce(of(second), ReduceOp::kSum,
                           telling([&](const std::exception_ptr&) { done.set_value(); }));
    issued.set_value();
    work->wait();
    told.get_future().wait();
    group(rank).barrier()->wait();
    EXPECT_EQ(second, static_cast<float>(size()));
  });
}

// The thread that fails the operation is the only one that could fail what the listener waits for.
TEST_P(OnDone, OfAMessageMayWaitForTheGroupThatFails) {
  test::on_ranks(size(), [&](Rank rank) {
    std::promise<std::error_code> told;
    float received = 0;
    WorkPtr message;
    if (rank == 0) {
      message = group(0).recv(
          of(received), 1, 0, telling([&](const std::exception_ptr&) {
            told.set_value(test::failure_of([&] { group(0).barrier()->wait(); }).code);
          }));
    }
    std::vector<float> values(rank == 0 ? 10 : 11);
    const CollectiveError error = test::failure_of([&] {
      group(rank).all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum)->wait();
    });
    EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
    if (rank != 0) return;
    auto code = told.get_future();
    ASSERT_EQ(code.wait_for(60s), std::future_status::ready);
    EXPECT_EQ(code.get(), Errc::kMismatch);
  });
}

// Messages of rank 2 arrive while rank 0 waits for a large block of rank 1, in an operation that
// the listeners wait for.
TEST(OnDoneBetweenNodes, OfAMessageMayWaitForTheOperationInWhichItComes) {
  constexpr std::size_t kLarge = 4'000'000;
  constexpr std::uint32_t kMessages = 50;
  const auto groups = test::thread_groups({1, 1, 1});
  std::promise<WorkPtr> issued;  // Rank 0's operation.
  const auto operation = issued.get_future().share();
  std::atomic<std::uint32_t> told{0};
  test::on_ranks(3, [&](Rank rank) {
    ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
    std::vector<float> in(kLarge + 2);
    std::vector<float> out(kLarge + 2);
    std::vector<float> messages(kMessages);
    const auto listener = [&](const std::exception_ptr&) {
      operation.get()->wait();
      ++told;
    };
    for (std::uint32_t tag = 0; rank == 0 && tag < kMessages; ++tag)
      group.recv(of(messages[tag]), 2, tag, telling(listener));
    const std::vector<std::size_t> ones(3, 1);
    const std::vector<std::size_t> to_zero{kLarge, 1, 1};
    const std::vector<std::size_t> from_one{1, kLarge, 1};
    const WorkPtr work = group.all_to_allv(
        {in.data(), rank == 1 ? in.size() : 3, DType::kF32}, rank == 1 ? to_zero : ones,
        {out.data(), rank == 0 ? out.size() : 3, DType::kF32}, rank == 0 ? from_one : ones);
    if (rank == 0) issued.set_value(work);
    // Not sooner: a message that is there already is told to the thread that asks for it.
    operation.wait();
    for (std::uint32_t tag = 0; rank == 2 && tag < kMessages; ++tag)
      group.send(of(messages[tag]), 0, tag)->wait();
    work->wait();
    while (rank == 0 && told < kMessages) std::this_thread::yield();
    group.barrier()->wait();
  });
}

// The threads of a group cannot end it themselves.
TEST_P(OnDone, MayHoldTheLastReferenceToTheGroup) {
  std::vector<std::promise<void>> ended(groups_.size());
  test::on_ranks(size(), [&](Rank rank) {
    std::shared_ptr<ProcessGroup> part = group(rank).split(0);
    // Destroyed after `part`: by then the group is ending.
    const auto end = [&, rank](int*) { ended[static_cast<std::size_t>(rank)].set_value(); };
    const std::shared_ptr<int> last(nullptr, end);
    auto value = std::make_shared<float>(1.0F);
    ProcessGroup& raw = *part;
    raw.all_reduce(of(*value), ReduceOp::kSum,
                   telling([last, value, part](const std::exception_ptr& failure) {
                     EXPECT_EQ(failure, nullptr);
                   }));
    part.reset();
  });
  for (std::promise<void>& each : ended)
    ASSERT_EQ(each.get_future().wait_for(60s), std::future_status::ready);
}

TEST_P(OnDone, OfAMessageMayHoldTheLastReferenceToTheGroup) {
  std::promise<void> told;
  test::on_ranks(size(), [&](Rank rank) {
    std::shared_ptr<ProcessGroup> part = group(rank).split(0);
    auto value = std::make_shared<float>(1.0F);
    if (rank == 0) {
      ProcessGroup& raw = *part;
      raw.recv(of(*value), 1, 0, telling([&told, value, part](const std::exception_ptr&) mutable {
                 part.reset();
                 told.set_value();
               }));
      part.reset();
    }
    group(rank).barrier()->wait();
    if (rank == 1) part->send(of(*value), 0)->wait();
    EXPECT_EQ(rank == 0 ? told.get_future().wait_for(60s) : std::future_status::ready,
              std::future_status::ready);
    group(rank).barrier()->wait();
  });
}

TEST_P(OnDone, IsToldTheFailure) {
  test::on_ranks(size(), [&](Rank rank) {
    if (rank == 0) {
      group(rank).abort("of the test");
      return;
    }
    std::promise<std::exception_ptr> told;
    float value = 1;
    try {
      group(rank).all_reduce(of(value), ReduceOp::kSum, telling([&](std::exception_ptr failure) {
                               told.set_value(std::move(failure));
                             }));
    } catch (const CollectiveError&) {
      return;  // The abort came first.
    }
    const std::exception_ptr failure = told.get_future().get();
    ASSERT_NE(failure, nullptr);
    try {
      std::rethrow_exception(failure);
    } catch (const CollectiveError& error) {
      EXPECT_EQ(error.code, Errc::kAborted);
    }
  });
}

}  // namespace
}  // namespace ddp
