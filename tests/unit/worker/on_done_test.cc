// OpOptions::on_done: who is told that an operation is done, when, and on which thread.
#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include "common/base/errc.h"
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
