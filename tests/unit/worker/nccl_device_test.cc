#include <signal.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "tests/support/failure_of.h"
#include "tests/support/nccl_ranks.h"

// What only a device can show: kernels that really wait, processes that really die, and what is
// left behind.
namespace ddp {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::DeviceArray;
using test::failure_of;
using test::NcclRank;
using ::testing::HasSubstr;

using Flag = test::Shared<std::atomic<bool>>;

class NcclDevice : public test::NcclRanksTest {
 protected:
  // Of the ranks of the group, in a round of its own.
  void expect_next_round_works(NcclRank& rank, Rank own, int size) {
    const auto group = rank.group([&](NcclGroupOptions& options) {
      options.rank = own;
      options.size = size;
      options.round = 1;
    });
    const auto data = array(*group, DType::kI64, {own + 1.0});
    group->all_reduce(data.buffer(), ReduceOp::kSum)->wait();
    EXPECT_EQ(data.values().front(), size * (size + 1) / 2);
  }
  // An all_reduce that waits on the device for a rank that stays away.
  WorkPtr waiting_operation(NcclGroup& group, const DeviceArray& data, milliseconds timeout) {
    auto work = group.all_reduce(data.buffer(), ReduceOp::kSum, {timeout, "lonely"});
    std::dynamic_pointer_cast<NcclWork>(work)->wait_stream(nullptr);  // It is in the stream.
    const TimePoint until = Clock::now() + milliseconds(100);
    while (Clock::now() < until) EXPECT_FALSE(work->done());
    return work;
  }
};

// For a rank that has issued nothing.
Failure failure_told_to(const NcclGroup& group, seconds limit) {
  test::wait_until([&] { return group.failure().has_value(); }, limit);
  return group.failure().value_or(Failure{{}, -1, "no failure"});
}

TEST_P(NcclDevice, AnAbortEndsAKernelThatWaits) {
  world(2, [&](NcclRank& rank) {
    {
      const auto group = rank.group();
      const auto data = array(*group, DType::kF32, std::vector<double>(1000, 1.0));
      group->barrier()->wait();
      if (rank.rank == 0) {
        const auto work = waiting_operation(*group, data, seconds(60));
        const TimePoint started = Clock::now();
        group->abort("of the test");
        const auto error = failure_of([&] { work->wait(); });
        EXPECT_EQ(error.code, Errc::kAborted);
        EXPECT_STREQ(error.what(), "rank 0 aborted the group: of the test");
        EXPECT_LT(Clock::now() - started, seconds(10));
        EXPECT_EQ(data.values().size(), 1000U);  // The device is still sound.
      } else {
        EXPECT_EQ(failure_told_to(*group, seconds(30)).text,
                  "rank 0 aborted the group: of the test");
      }
    }
    expect_next_round_works(rank, rank.rank, rank.size);
  });
}

TEST_P(NcclDevice, ADeadlineEndsAKernelThatWaits) {
  world(2, [&](NcclRank& rank) {
    {
      const auto group = rank.group();
      group->barrier()->wait();
      if (rank.rank == 0) {
        const auto data = array(*group, DType::kF32, std::vector<double>(1000, 1.0));
        const auto work = waiting_operation(*group, data, milliseconds(500));
        const auto error = failure_of([&] { work->wait(); });
        EXPECT_EQ(error.code, Errc::kTimeout);
        EXPECT_STREQ(error.what(),
                     "all_reduce #1 (lonely): timed out after 500 ms on rank 0: not all ranks have "
                     "reached it, or the device is busy with earlier work");
      } else {
        EXPECT_EQ(failure_told_to(*group, seconds(30)).code, Errc::kTimeout);
      }
    }
    expect_next_round_works(rank, rank.rank, rank.size);
  });
}

// NCCL may notice that the connection is gone; if not, the deadline ends it.
TEST_P(NcclDevice, ARankThatIsKilledEndsTheOthers) {
  for (const int size : {2, 3}) {
    const Flag waits;
    const auto statuses = test::run_processes(library_, devices_, size, [&](NcclRank& rank) {
      {
        const auto group = rank.group();
        // The same operation, so that NCCL has connected the ranks for it.
        const auto data = array(*group, DType::kF32, std::vector<double>(1000, 1.0));
        group->all_reduce(data.buffer(), ReduceOp::kSum)->wait();
        if (rank.rank == 1) {
          test::wait_until([&] { return waits->load(); });
          ::raise(SIGKILL);
        }
        if (rank.rank == 0) {
          const auto work = waiting_operation(*group, data, seconds(20));
          const TimePoint started = Clock::now();
          *waits = true;
          const auto error = failure_of([&] { work->wait(); });
          const auto took = duration_cast<milliseconds>(Clock::now() - started);
          std::printf("rank 1 of %d was killed; rank 0, after %d ms: %s\n", size,
                      static_cast<int>(took.count()), error.what());
          EXPECT_TRUE(error.code == Errc::kTimeout || error.code == Errc::kPeerLost)
              << error.what();
          EXPECT_LT(took, seconds(30));
        } else {
          const Failure failure = failure_told_to(*group, seconds(60));
          EXPECT_TRUE(failure.told);
          EXPECT_THAT(failure.text, HasSubstr("all_reduce #1 (lonely): "));
        }
      }
      expect_next_round_works(rank, rank.rank == 0 ? 0 : 1, size - 1);
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], rank == 1 ? 128 + SIGKILL : 0);
    }
  }
}

struct Holdings {
  std::ptrdiff_t threads = 0;
  std::ptrdiff_t files = 0;

  static Holdings now() {
    const auto entries = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    return {entries("/proc/self/task"), entries("/proc/self/fd")};
  }
  bool fits(const Holdings& limit) const {
    return threads <= limit.threads && files <= limit.files;
  }
};

// Between the first groups, after which NCCL holds what it never gives back, and the last.
class NcclLeftovers : public NcclDevice {
 protected:
  void expect_none(int size, int first, int last,
                   const std::function<void(NcclGroup&)>& use_group) {
    world(size, [&](NcclRank& rank) {
      Holdings held;
      for (Round round = 1; round <= last; ++round) {
        {
          const auto group = rank.group([&](NcclGroupOptions& each) { each.round = round; });
          use_group(*group);
        }
        if (round == first) held = Holdings::now();
      }
      // NCCL's threads end in the background.
      const bool fits = test::wait_until([&] { return Holdings::now().fits(held); });
      const Holdings end = Holdings::now();
      EXPECT_TRUE(fits) << "threads: " << held.threads << ", then " << end.threads
                        << "; files: " << held.files << ", then " << end.files;
    });
  }
};

TEST_P(NcclLeftovers, NoneOfGroupsThatEnd) {
  const auto use = [](NcclGroup& group) { group.barrier()->wait(); };
  expect_none(1, 10, 40, use);
  expect_none(2, 5, 25, use);
}

TEST_P(NcclLeftovers, NoneOfGroupsThatAreAborted) {
  expect_none(1, 10, 30, [](NcclGroup& group) {
    group.barrier()->wait();
    group.abort("of the test");
  });
}

INSTANTIATE_TEST_SUITE_P(Library, NcclDevice, ::testing::Values("device"), test::library_name);
INSTANTIATE_TEST_SUITE_P(Library, NcclLeftovers, ::testing::Values("device"), test::library_name);

}  // namespace
}  // namespace ddp
