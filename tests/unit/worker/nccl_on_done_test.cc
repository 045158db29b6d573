#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/cuda_functions.h"
#include "tests/support/nccl_ranks.h"

// OpOptions::on_done of groups for device memory.
namespace ddp {
namespace {

using std::chrono::seconds;
using test::NcclRank;

using NcclOnDone = test::NcclRanksTest;

OpOptions telling(std::function<void(std::exception_ptr)> listener, bool synchronous = false) {
  OpOptions options;
  options.synchronous = synchronous;
  options.on_done = std::move(listener);
  return options;
}

void expect_told(const std::atomic<int>& told, int times) {
  test::wait_until([&] { return told >= times; });
  EXPECT_EQ(told, times);
}

TEST_P(NcclOnDone, IsCalledOnceForEachOperation) {
  everywhere([&](NcclGroup& group) {
    std::atomic<int> told{0};
    const auto count = [&](const std::exception_ptr& failure) {
      EXPECT_EQ(failure, nullptr);
      ++told;
    };
    const auto data = array(group, DType::kF32, {1.0});
    WorkPtr last;
    for (int i = 0; i < 20; ++i) {
      last = group.all_reduce(data.buffer(), ReduceOp::kMax, telling(count, i % 3 == 0));
      if (i % 5 == 0) last->wait();
    }
    expect_told(told, 20);  // Nobody needs to wait for the last one.
    EXPECT_TRUE(last->done());
    group.barrier()->wait();
    EXPECT_EQ(told, 20);
  });
}

TEST_P(NcclOnDone, MayIssueOperationsAndWaitForThem) {
  everywhere([&](NcclGroup& group) {
    std::promise<void> done;
    const auto first = array(group, DType::kF32, {1.0});
    const auto second = array(group, DType::kF32, {1.0});
    const auto issue = [&](const std::exception_ptr& failure) {
      EXPECT_EQ(failure, nullptr);
      group.all_reduce(second.buffer(), ReduceOp::kSum)->wait();
      done.set_value();
    };
    group.all_reduce(first.buffer(), ReduceOp::kSum, telling(issue));
    ASSERT_EQ(done.get_future().wait_for(seconds(30)), std::future_status::ready);
    EXPECT_EQ(second.values().front(), group.size());
    group.barrier()->wait();
  });
}

// Rank 1 stays away, so everything is pending.
TEST_P(NcclOnDone, IsToldTheFailure) {
  const test::Shared<std::atomic<bool>> through;
  world(2, [&](NcclRank& rank) {
    const auto group = rank.group();
    if (rank.rank == 1) {
      test::wait_until([&] { return through->load(); });
      return;
    }
    std::atomic<int> told{0};
    const auto listener = telling([&](const std::exception_ptr& failure) {
      EXPECT_NE(failure, nullptr);
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const CollectiveError& error) {
        EXPECT_EQ(error.code, Errc::kAborted);
        EXPECT_STREQ(error.what(), "rank 0 aborted the group: of the test");
        ++told;
      }
    });
    const auto data = array(*group, DType::kF32, {1.0});
    for (int i = 0; i < 5; ++i) group->all_reduce(data.buffer(), ReduceOp::kSum, listener);
    group->abort("of the test");
    expect_told(told, 5);
    EXPECT_THROW(group->all_reduce(data.buffer(), ReduceOp::kSum, listener), CollectiveError);
    EXPECT_EQ(told, 5);  // A call that throws tells nobody.
    *through = true;
  });
}

TEST_P(NcclOnDone, IsCalledWhenAnOperationIsInAGraph) {
  world(1, [&](NcclRank& rank) {
    const test::CudaFunctions cuda(*library_);
    const test::DeviceStream stream(*library_);
    const auto group = rank.group();
    std::atomic<int> told{0};
    const auto data = array(*group, DType::kF32, {1.0});
    rank.stream = stream.get();
    test::Recording graph(cuda, stream.get(), test::kCaptureGlobal);
    const auto work = group->all_reduce(data.buffer(), ReduceOp::kSum,
                                        telling([&](const std::exception_ptr& failure) {
                                          EXPECT_EQ(failure, nullptr);
                                          ++told;
                                        }));
    expect_told(told, 1);
    std::dynamic_pointer_cast<NcclWork>(work)->wait_stream(stream.get());
    graph.finish();
    for (int turn = 0; turn < 3; ++turn) graph.launch();
    stream.synchronize();
    EXPECT_EQ(told, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Library, NcclOnDone, ::testing::Values("standin", "device"),
                         test::library_name);

}  // namespace
}  // namespace ddp
