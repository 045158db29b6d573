#include "worker/runtime/waiting_time.h"

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/worker_world.h"

namespace ddp::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kLong{100};

void let_time_pass() { std::this_thread::sleep_for(kLong); }  // sleep: a wait of known length

// What the account says of the time that `body` takes, and that time.
struct Measured {
  nanoseconds computed;
  nanoseconds all;
};
Measured measure(const std::function<void()>& body) {
  const TimePoint begin = Clock::now();
  const nanoseconds before = computed_time(begin);
  body();
  const TimePoint end = Clock::now();
  return {computed_time(end) - before, end - begin};
}

TEST(WaitingTime, IsNotComputed) {
  const auto [computed, all] = measure([] {
    const Waiting waiting;
    let_time_pass();
  });
  EXPECT_LE(computed, all - kLong);
  EXPECT_GE(computed.count(), 0);
}

TEST(WaitingTime, WorkIsComputed) {
  const auto [computed, all] = measure(let_time_pass);
  EXPECT_EQ(computed, all);
}

TEST(WaitingTime, OfTwoThreadsAtOnceCountsOnce) {
  const auto [computed, all] = measure([] {
    const Waiting waiting;
    std::thread other([] {
      const Waiting also;
      let_time_pass();
    });
    other.join();
  });
  EXPECT_LE(computed, all - kLong);
  EXPECT_GE(computed.count(), 0) << "it counts twice";
}

TEST(WaitingTime, HelpersDoNotCount) {
  const auto [computed, all] = measure([] {
    std::thread helper([] {
      ignore_waits_of_this_thread();
      const Waiting waiting;
      let_time_pass();
    });
    helper.join();
  });
  EXPECT_EQ(computed, all);
}

// Both ranks are threads of this process, so only the waits of one of them may count: rank 0, which
// measures. Rank 1 does its part a while after rank 0 has said that it begins.
void with_late_rank_1(
    const std::function<void(ProcessGroup&, const std::function<void()>&)>& rank_0,
    const std::function<void(ProcessGroup&)>& rank_1) {
  for (const std::vector<int>& nodes : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
    std::promise<void> begun;
    test::with_groups(nodes, [&](ProcessGroup& group) {
      if (group.rank() == 0) return rank_0(group, [&] { begun.set_value(); });
      ignore_waits_of_this_thread();
      begun.get_future().wait();
      let_time_pass();
      rank_1(group);
    });
  }
}

using Call = std::function<void(ProcessGroup& group, Buffer buffer)>;

// On a busy machine rank 0 may get to its call only when rank 1 is there, too.
constexpr int kAttempts = 20;

bool rank_0_waits(const Call& of_rank_0, const Call& of_rank_1) {
  std::vector<float> mine(1'000);
  std::vector<float> others(1'000);
  int waits = 0;
  with_late_rank_1(
      [&](ProcessGroup& group, const auto& begin) {
        const auto [computed, all] = measure([&] {
          begin();
          of_rank_0(group, {mine.data(), mine.size(), DType::kF32});
        });
        EXPECT_GE(computed.count(), 0);
        if (computed <= all - kLong / 2) ++waits;
      },
      [&](ProcessGroup& group) {
        of_rank_1(group, {others.data(), others.size(), DType::kF32});
      });
  return waits == 2;
}

void expect_that_rank_0_waits(const Call& of_rank_0, const Call& of_rank_1) {
  for (int i = 0; i < kAttempts; ++i) {
    if (rank_0_waits(of_rank_0, of_rank_1)) return;
  }
  ADD_FAILURE() << "the waits count as computing";
}

TEST(WaitingTime, HasEverythingInWhichAThreadWaitsForOtherRanks) {
  const Call wait = [](ProcessGroup& group, Buffer buffer) {
    group.all_reduce(buffer, ReduceOp::kSum)->wait();
  };
  expect_that_rank_0_waits(wait, wait);
  const Call synchronous = [](ProcessGroup& group, Buffer buffer) {
    OpOptions options;
    options.synchronous = true;
    group.all_reduce(buffer, ReduceOp::kSum, options);
  };
  expect_that_rank_0_waits(synchronous, synchronous);
  expect_that_rank_0_waits(
      [](ProcessGroup& group, Buffer buffer) { group.recv(buffer, 1, 7)->wait(); },
      [](ProcessGroup& group, Buffer buffer) { group.send(buffer, 0, 7)->wait(); });
}

// As PyTorch's DistributedDataParallel: nobody calls wait().
TEST(WaitingTime, HasTheWaitForAFuture) {
  const auto await = [](ProcessGroup& group, Buffer buffer) {
    std::promise<void> done;
    OpOptions options;
    options.on_done = [&done](const std::exception_ptr&) { done.set_value(); };
    const auto work = group.all_reduce(buffer, ReduceOp::kSum, options);
    work->start();
    done.get_future().wait();
  };
  const Call wait = [](ProcessGroup& group, Buffer buffer) {
    group.all_reduce(buffer, ReduceOp::kSum)->wait();
  };
  expect_that_rank_0_waits(await, wait);
}

// A program that computes while an operation runs, and then calls wait(), has not waited.
TEST(WaitingTime, HasNotWhatIsOverlapped) {
  std::vector<float> mine(1'000);
  std::vector<float> others(1'000);
  for (const bool has_future : {false, true}) {
    with_late_rank_1(
        [&](ProcessGroup& group, const auto& begin) {
          const auto [computed, all] = measure([&] {
            begin();
            std::promise<void> done;
            OpOptions options;
            if (has_future) {
              options.on_done = [&done](const std::exception_ptr&) { done.set_value(); };
            } else {
              done.set_value();
            }
            const auto work =
                group.all_reduce({mine.data(), mine.size(), DType::kF32}, ReduceOp::kSum, options);
            work->start();
            while (!work->done()) let_time_pass();
            done.get_future().wait();
            work->wait();
          });
          EXPECT_EQ(computed, all);
        },
        [&](ProcessGroup& group) {
          group.all_reduce({others.data(), others.size(), DType::kF32}, ReduceOp::kSum)->wait();
        });
  }
}

}  // namespace
}  // namespace ddp::runtime
