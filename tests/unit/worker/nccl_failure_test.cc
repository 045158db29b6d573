#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/nccl_world.h"
#include "worker/nccl/nccl_api.h"

// How operations fail, on the stand-in, which stops, fails or hangs on demand.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::control;
using test::DeviceArray;
using test::failure_of;
using test::NcclWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Far above what an abort takes, far below the deadlines of the operations that it ends.
constexpr seconds kPrompt{10};

class NcclFailure : public test::StandinTest {
 protected:
  void SetUp() override {
    StandinTest::SetUp();
    library_ = test::standin_library();
    started_ = Clock::now();
  }
  DeviceArray ones(NcclGroup& group, std::size_t count = 100) {
    return {group, *library_, DType::kF32, std::vector<double>(count, 1.0)};
  }
  // One operation, through which everybody is on return.
  static void run_one(NcclWorld& world) {
    world.run([](NcclGroup& group) { group.barrier()->wait(); });
  }
  void expect_prompt() { EXPECT_LT(Clock::now() - started_, kPrompt); }

  std::shared_ptr<const NcclLibrary> library_;
  TimePoint started_;
};

OpOptions within(milliseconds timeout, const std::string& tag = "") {
  OpOptions options;
  options.timeout = timeout;
  options.tag = tag;
  return options;
}

void wait_until(const std::function<bool()>& condition) {
  const TimePoint limit = Clock::now() + seconds(20);
  while (!condition()) {
    ASSERT_LT(Clock::now(), limit) << "the condition does not come";
    std::this_thread::yield();
  }
}

TEST_F(NcclFailure, AnAsynchronousErrorFailsEveryRankAndNamesOperationAndRank) {
  for (const int size : {2, 3, 4}) {
    control().reset();
    NcclWorld world(library_, size);
    run_one(world);
    control().fail_rank(size - 1, nccl::api::kRemoteError);
    world.run([&](NcclGroup& group) {
      const auto data = ones(group);
      // The news may come before the operation is issued.
      const auto sum = [&] {
        group.all_reduce(data.buffer(), ReduceOp::kSum, within(seconds(60), "bucket 3"))->wait();
      };
      const CollectiveError error = failure_of(sum);
      EXPECT_EQ(error.code, Errc::kPeerLost);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank " + std::to_string(size - 1) + ": "),
                                      HasSubstr("remote process exited"),
                                      HasSubstr("last words of the stand-in")));
      // The first cause is what every later call gets.
      EXPECT_STREQ(failure_of(sum).what(), error.what());
    });
  }
  expect_prompt();
}

TEST_F(NcclFailure, AnErrorIsToldByTheNameOfWhatRuns) {
  NcclWorld world(library_, 2);
  run_one(world);
  control().hang_kernels(1);
  std::atomic<int> issued{0};
  world.run([&](NcclGroup& group) {
    const auto data = ones(group);
    const auto work =
        group.all_reduce(data.buffer(), ReduceOp::kSum, within(seconds(60), "bucket 3"));
    ++issued;
    if (group.rank() == 1) {
      wait_until([&] { return issued == 2 && control().running_kernels() == 2; });
      control().fail_rank(1, nccl::api::kSystemError);
    }
    const CollectiveError error = failure_of([&] { work->wait(); });
    EXPECT_EQ(error.code, Errc::kIo);
    EXPECT_EQ(error.suspect_rank, 1);
    // Seen by the watchdog, or by the communication thread if the launch was not through.
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce #1 (bucket 3): rank 1: "),
                                    HasSubstr("unhandled system error (NCCL error 2)")));
  });
  expect_prompt();
}

TEST_F(NcclFailure, AnOperationThatHangsEndsAtItsDeadline) {
  NcclWorld world(library_, 3);
  run_one(world);
  control().hang_kernels(2);
  world.run([&](NcclGroup& group) {
    const auto data = ones(group);
    const CollectiveError error = failure_of([&] {
      group.all_reduce(data.buffer(), ReduceOp::kSum, within(milliseconds(100), "b"))->wait();
    });
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("all_reduce #1 (b): timed out after 100 ms on rank "));
  });
  EXPECT_GE(Clock::now() - started_, milliseconds(100));
  expect_prompt();
}

TEST_F(NcclFailure, NobodyNeedsToWaitForADeadlineToBeSeen) {
  std::promise<Failure> seen;
  NcclWorld world(library_, 1, [&](NcclGroupOptions& options) {
    options.on_abort = [&](const Failure& failure) { seen.set_value(failure); };
  });
  control().hang_kernels(0);
  const auto work = world[0].barrier(within(milliseconds(50)));
  auto future = seen.get_future();
  ASSERT_EQ(future.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_EQ(future.get().code, Errc::kTimeout);
  wait_until([&] { return work->done(); });
}

TEST_F(NcclFailure, AnOperationBehindAnotherOneKeepsItsDeadline) {
  NcclWorld world(library_, 1);
  control().hang_kernels(0);
  const auto slow = world[0].barrier(within(seconds(60), "slow"));
  const auto quick = world[0].barrier(within(milliseconds(50), "quick"));
  const CollectiveError error = failure_of([&] { quick->wait(); });
  EXPECT_STREQ(
      error.what(),
      "barrier #1 (quick): timed out after 50 ms on rank 0: it waits for barrier #0 (slow), "
      "which is not done");
  EXPECT_STREQ(failure_of([&] { slow->wait(); }).what(), error.what());
  expect_prompt();
}

TEST_F(NcclFailure, AbortEndsWhatHangsOnEveryRank) {
  for (const int size : {1, 2, 4}) {
    control().reset();
    NcclWorld world(library_, size);
    control().hang_kernels(size - 1);
    world.run([&](NcclGroup& group) {
      const auto data = ones(group);
      WorkPtr work;
      if (group.rank() == 0) {
        work = group.all_reduce(data.buffer(), ReduceOp::kSum);
        wait_until([] { return control().running_kernels() > 0; });
        group.abort("loss is not a number");
        group.abort("a second reason");
      }
      const CollectiveError error = failure_of([&] {
        if (!work) work = group.all_reduce(data.buffer(), ReduceOp::kSum);
        work->wait();
      });
      EXPECT_EQ(error.code, Errc::kAborted);
      EXPECT_EQ(error.suspect_rank, 0);
      EXPECT_STREQ(error.what(), "rank 0 aborted the group: loss is not a number");
    });
  }
  expect_prompt();
}

TEST_F(NcclFailure, AbortReachesOperationsThatNcclHasNotStarted) {
  control().delay_launch(60'000);
  NcclWorld world(library_, 2);
  world.run([&](NcclGroup& group) {
    std::jthread aborting;
    if (group.rank() == 1) aborting = std::jthread([&] { group.abort("stop"); });
    WorkPtr first;
    const CollectiveError error = failure_of([&] {
      first = group.barrier();  // It may be late for the abort.
      group.barrier()->wait();
    });
    EXPECT_STREQ(error.what(), "rank 1 aborted the group: stop");
    if (first) {
      EXPECT_STREQ(failure_of([&] { first->wait(); }).what(), error.what());
    }
  });
  expect_prompt();
}

TEST_F(NcclFailure, WhatNcclHasNotStartedTimesOutWithThatReason) {
  control().delay_launch(60'000);
  NcclWorld world(library_, 1);
  const CollectiveError error =
      failure_of([&] { world[0].barrier(within(milliseconds(50)))->wait(); });
  EXPECT_THAT(error.what(), HasSubstr("NCCL has not started it"));
  expect_prompt();
}

// A kernel that was told to end may still write for a while.
TEST_F(NcclFailure, AFailedOperationHasLeftItsBuffer) {
  control().linger(100);
  NcclWorld world(library_, 2);
  control().hang_kernels(0);
  world.run([&](NcclGroup& group) {
    const auto data = ones(group);
    const CollectiveError error = failure_of(
        [&] { group.all_reduce(data.buffer(), ReduceOp::kSum, within(milliseconds(30)))->wait(); });
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_THAT(error.what(), Not(HasSubstr("may still use the buffers")));
    const auto before = data.values();
    const TimePoint until = Clock::now() + milliseconds(20);
    wait_until([&] { return Clock::now() > until; });
    EXPECT_EQ(data.values(), before);
  });
  EXPECT_EQ(control().running_kernels(), 0);
}

TEST_F(NcclFailure, AnAbortThatHangsIsSaidAndNotWaitedFor) {
  {
    NcclWorld world(library_, 2,
                    [](NcclGroupOptions& options) { options.abort_grace = milliseconds(150); });
    control().hang_kernels(0);
    control().hang_abort(0);
    world.run([&](NcclGroup& group) {
      const CollectiveError error =
          failure_of([&] { group.barrier(within(milliseconds(30)))->wait(); });
      EXPECT_EQ(error.code, Errc::kTimeout);
      if (group.rank() == 0) {
        EXPECT_THAT(error.what(), HasSubstr("ncclCommAbort on rank 0 has not returned after 150 "
                                            "ms: the device may still use the buffers"));
      }
    });
    world.end();
    expect_prompt();
  }
  control().release();  // The parked thread ends, and with it the rest of rank 0.
  wait_until([] { return control().live_objects() == 0; });
}

TEST_F(NcclFailure, AnErrorOfTheDeviceFailsEveryRank) {
  NcclWorld world(library_, 2);
  run_one(world);
  control().fail_device(1, 700);
  world.run([&](NcclGroup& group) {
    const CollectiveError error = failure_of([&] {
      for (;;) group.barrier()->wait();  // Rank 0's first one may succeed.
    });
    EXPECT_EQ(error.code, Errc::kIo);
    EXPECT_EQ(error.suspect_rank, 1);
    EXPECT_STREQ(error.what(),
                 "barrier #1: rank 1: the device: an illegal memory access was "
                 "encountered (CUDA error 700)");
  });
  control().reset();
}

TEST_F(NcclFailure, GivingUpTheGroupWithWorkOutstandingFailsTheOthers) {
  NcclWorld world(library_, 3);
  const auto first = world[0].barrier();
  const auto second = world[1].barrier();
  world.end(1);
  for (const auto& work : {first, second}) {
    const CollectiveError error = failure_of([&] { work->wait(); });
    EXPECT_STREQ(error.what(), "rank 1 destroyed the group before its operations were done");
  }
  expect_prompt();
}

TEST_F(NcclFailure, AGroupThatEndsAloneDoesNotWaitForEver) {
  NcclWorld world(library_, 2,
                  [](NcclGroupOptions& options) { options.close_timeout = milliseconds(100); });
  run_one(world);
  world.end(0);  // NCCL waits for the other rank of the node.
  EXPECT_GE(Clock::now() - started_, milliseconds(100));
  expect_prompt();
}

TEST_F(NcclFailure, WorkOutlivesItsGroup) {
  NcclWorld world(library_, 2);
  const auto one = world[0].barrier();
  const auto other = world[1].barrier();
  one->wait();
  other->wait();
  world.end();
  EXPECT_TRUE(one->done());
  one->wait();
  std::dynamic_pointer_cast<NcclWork>(one)->wait_stream(nullptr);
}

TEST_F(NcclFailure, SeveralThreadsMayWaitForOneWork) {
  NcclWorld world(library_, 2);
  const auto work = world[0].barrier();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { work->wait(); });
  world[1].barrier()->wait();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclFailure, GroupsOfARoundFailTogether) {
  NcclWorld world(library_, 3);
  std::vector<std::shared_ptr<ProcessGroup>> pairs(3);
  world.run([&](NcclGroup& group) {
    pairs[static_cast<std::size_t>(group.rank())] = group.new_group(std::vector<Rank>{0, 2});
  });
  pairs[2]->abort("enough");
  world.run([&](NcclGroup& group) {
    const std::string expected = "rank 1 aborted the group: enough";  // Its rank in the pair.
    EXPECT_EQ(failure_of([&] { group.barrier()->wait(); }).what(), expected);
    const auto& pair = pairs[static_cast<std::size_t>(group.rank())];
    if (pair) {
      EXPECT_EQ(failure_of([&] { pair->barrier()->wait(); }).what(), expected);
    }
  });
  pairs.clear();
}

TEST_F(NcclFailure, AMonitoredBarrierListsWhoIsMissing) {
  NcclWorld world(library_, 4);
  world.run([&](NcclGroup& group) {
    if (group.rank() == 1 || group.rank() == 3) return;
    const CollectiveError error =
        failure_of([&] { group.monitored_barrier(milliseconds(500), true); });
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_EQ(error.suspect_rank, 1);
    EXPECT_STREQ(error.what(),
                 "monitored_barrier: timed out after 500 ms on rank 0: not arrived: ranks 1, 3");
  });
  EXPECT_THAT(failure_of([&] { world[3].barrier()->wait(); }).what(), HasSubstr("not arrived"));
  expect_prompt();
}

TEST_F(NcclFailure, TheCallbackMayHoldTheLastReferenceToTheGroup) {
  std::shared_ptr<NcclGroup> group;
  NcclGroupOptions options = test::nccl_options(0, 1);
  options.on_abort = [&](const Failure&) { group.reset(); };  // On the watchdog's thread.
  group = NcclGroup::make(library_, std::make_shared<test::HashStore>(), options);
  control().hang_kernels(0);
  const auto work = group->barrier(within(milliseconds(50)));
  EXPECT_EQ(failure_of([&] { work->wait(); }).code, Errc::kTimeout);
  wait_until([&] { return control().live_objects() == 0; });
  expect_prompt();
}

TEST_F(NcclFailure, AbortWhileEverybodyIsBusyNeverHangs) {
  for (int turn = 0; turn < 20; ++turn) {
    NcclWorld world(library_, 3);
    std::atomic<int> failed{0};
    world.run([&](NcclGroup& group) {
      const auto data = ones(group, 500);
      try {
        for (int i = 0;; ++i) {
          if (group.rank() == 1 && i == turn % 10) group.abort("enough");
          group.all_reduce(data.buffer(), ReduceOp::kMax)->wait();
        }
      } catch (const CollectiveError& error) {
        EXPECT_STREQ(error.what(), "rank 1 aborted the group: enough");
        ++failed;
      }
    });
    EXPECT_EQ(failed.load(), 3);
  }
}

}  // namespace
}  // namespace ddp
