#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "tests/support/cuda_functions.h"
#include "tests/support/nccl_ranks.h"

// The order of streams: operations between other work of the device, with no wait of the host, and
// operations in graphs.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::CudaFunctions;
using test::DeviceArray;
using test::DeviceStream;
using test::NcclRank;
using test::Recording;
using ::testing::Each;

using NcclStreams = test::NcclRanksTest;

void wait_in(cuda::Stream stream, const WorkPtr& work) {
  std::dynamic_pointer_cast<NcclWork>(work)->wait_stream(stream);
}

std::vector<Rank> ranks_of(const NcclGroup& group) {
  std::vector<Rank> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The second operation takes its input from a stream that waits for the first, which rank 0 joins
// only after the others have issued both.
TEST_P(NcclStreams, AreOrderedBehindAnOperationThatIsLate) {
  for (int size = 1; size <= 4; ++size) {
    world(size, [&](NcclRank& rank) {
      const DeviceStream stream(*library_);
      const auto one = rank.group();
      const auto other = one->new_group(ranks_of(*one));
      const auto data = array(*one, DType::kF32, {1.0});
      const auto late = array(*one, DType::kF32, {10.0});
      const auto sum = [](ProcessGroup& group, const DeviceArray& each) {
        return group.all_reduce(each.buffer(), ReduceOp::kSum);
      };
      one->barrier()->wait();
      other->barrier()->wait();
      if (rank.rank == 0) {
        const auto second = sum(*other, late);
        const TimePoint until = Clock::now() + milliseconds(50);
        while (size > 1 && Clock::now() < until) ASSERT_FALSE(second->done());
        sum(*one, data)->wait();
        second->wait();
        EXPECT_EQ(late.values().front(), 10 + (size - 1) * size);
        return;
      }
      const auto first = sum(*one, data);
      wait_in(stream.get(), first);
      rank.stream = stream.get();
      sum(*other, data)->wait();
      EXPECT_EQ(data.values().front(), 10 + (size - 1) * size);
      first->wait();
    });
  }
}

// In each turn the device has much to do before the input is there.
TEST_P(NcclStreams, AreOrderedBeforeAndBehindAnOperation) {
  constexpr int kTurns = 50;
  constexpr std::size_t kCount = 1000;
  const std::size_t bytes = on_standin() ? 1U << 16U : 1U << 30U;
  for (const int size : {1, 2}) {
    world(size, [&](NcclRank& rank) {
      const CudaFunctions cuda(*library_);
      const DeviceStream stream(*library_);
      const auto group = rank.group();
      const auto memory = group->allocate(bytes);
      const auto results = array(*group, DType::kU8, std::vector<double>(kTurns * kCount));
      // What is set last.
      const Buffer input{memory.get() + bytes - kCount, kCount, DType::kU8};
      rank.stream = stream.get();
      for (std::size_t turn = 0; turn < kTurns; ++turn) {
        for (const int value : {9, 8, 7, 1}) {
          cuda.memset_async(memory.get(), value, bytes, stream.get());
        }
        wait_in(stream.get(), group->all_reduce(input, ReduceOp::kSum));
        cuda.memcpy_async(results.part(turn * kCount, kCount).data, input.data, kCount,
                          test::kMemcpyDeviceToDevice, stream.get());
      }
      stream.synchronize();
      EXPECT_THAT(results.values(), Each(size));
      group->barrier()->wait();
    });
  }
}

// ---- Graphs.

class NcclGraphs : public test::NcclRanksTest {
 protected:
  // Ranks that share a process must not disturb each other's capture.
  int mode_for(int size) const {
    return on_standin() && size > 1 ? test::kCaptureThreadLocal : test::kCaptureGlobal;
  }
  // An ordinary operation.
  void expect_sum(NcclRank& rank, NcclGroup& group) {
    const auto data = array(group, DType::kF64, {rank.rank + 1.0});
    group.all_reduce(data.buffer(), ReduceOp::kSum)->wait();
    EXPECT_EQ(data.values().front(), rank.size * (rank.size + 1) / 2);
  }
};

TEST_P(NcclGraphs, RunTheirOperationsAtEachLaunch) {
  for (int size = 1; size <= 4; ++size) {
    world(size, [&](NcclRank& rank) {
      const CudaFunctions cuda(*library_);
      const DeviceStream stream(*library_);
      const auto group = rank.group();
      const auto input = array(*group, DType::kU8, std::vector<double>(1000));
      const auto middle = array(*group, DType::kU8, std::vector<double>(1000));
      const auto output = array(*group, DType::kU8, std::vector<double>(1000));
      const auto copy = [&](const DeviceArray& to, const DeviceArray& from) {
        cuda.memcpy_async(to.buffer().data, from.buffer().data, 1000, test::kMemcpyDeviceToDevice,
                          stream.get());
      };
      expect_sum(rank, *group);
      rank.stream = stream.get();
      Recording graph(cuda, stream.get(), mode_for(size));
      copy(middle, input);
      wait_in(stream.get(), group->all_reduce(middle.buffer(), ReduceOp::kSum));
      copy(output, middle);
      const auto last = group->all_reduce(output.buffer(), ReduceOp::kSum);
      EXPECT_TRUE(last->done());
      last->wait();
      wait_in(stream.get(), last);
      graph.finish();
      rank.stream = nullptr;
      EXPECT_THAT(middle.values(), Each(0));  // Nothing has run.
      expect_sum(rank, *group);
      for (int turn = 1; turn <= 10; ++turn) {
        cuda.memset_async(input.buffer().data, turn, 1000, stream.get());
        graph.launch();
        if (turn % 3 == 0) expect_sum(rank, *group);
        stream.synchronize();
        ASSERT_THAT(middle.values(), Each(turn * size));
        ASSERT_THAT(output.values(), Each(turn * size * size));
      }
      expect_sum(rank, *group);
    });
  }
}

// Every kind that NCCL runs as a kernel of its own, as several, or with a reduction of its own.
TEST_P(NcclGraphs, HoldOperationsOfEveryKind) {
  world(2, [&](NcclRank& rank) {
    const CudaFunctions cuda(*library_);
    const DeviceStream stream(*library_);
    const auto group = rank.group();
    const Rank peer = 1 - rank.rank;
    const double own = rank.rank + 1.0;
    const auto scaled = array(*group, DType::kF32, {own, own});
    const auto gathered = array(*group, DType::kF32, {0, 0});
    const auto received = array(*group, DType::kF32, {0});
    const auto given = array(*group, DType::kF32, {own});
    rank.stream = stream.get();
    Recording graph(cuda, stream.get(), mode_for(2));
    group->all_reduce(scaled.buffer(), ReduceOp::premul_sum(0.5));
    group->broadcast(scaled.part(1, 1), 1);
    group->all_gather(given.buffer(), gathered.buffer());
    group->barrier();
    wait_in(stream.get(), group->batch({{Transfer::Direction::kRecv, peer, received.buffer()},
                                        {Transfer::Direction::kSend, peer, given.buffer()}}));
    graph.finish();
    rank.stream = nullptr;
    for (int turn = 0; turn < 3; ++turn) graph.launch();
    stream.synchronize();
    EXPECT_THAT(scaled.values(), Each(1.5));
    EXPECT_THAT(gathered.values(), ::testing::ElementsAre(1, 2));
    EXPECT_EQ(received.values().front(), 3 - own);
    expect_sum(rank, *group);
  });
}

// The group's threads look at the operations before while the stream is captured.
TEST_P(NcclGraphs, AreRecordedWhileOtherOperationsRun) {
  if (on_standin()) test::control().delay_launch(30);
  world(1, [&](NcclRank& rank) {
    const CudaFunctions cuda(*library_);
    const DeviceStream stream(*library_);
    const auto group = rank.group();
    const auto ordinary = array(*group, DType::kF32, {4.0});
    const auto data = array(*group, DType::kF32, {3.0});
    std::vector<WorkPtr> before;
    for (int i = 0; i < 3; ++i) {
      before.push_back(group->all_reduce(ordinary.buffer(), ReduceOp::kSum));
    }
    rank.stream = stream.get();
    Recording graph(cuda, stream.get(), test::kCaptureGlobal);
    wait_in(stream.get(), group->all_reduce(data.buffer(), ReduceOp::kSum));
    graph.finish();
    for (const WorkPtr& work : before) work->wait();
    graph.launch();
    stream.synchronize();
    EXPECT_EQ(data.values().front(), 3);
    EXPECT_EQ(ordinary.values().front(), 4);
  });
}

TEST_P(NcclGraphs, MustJoinTheOperation) {
  if (!on_standin()) GTEST_SKIP() << "NCCL puts nothing into the graph of one rank";
  world(1, [&](NcclRank& rank) {
    const CudaFunctions cuda(*library_);
    const DeviceStream stream(*library_);
    const auto group = rank.group();
    const auto data = array(*group, DType::kF32, {3.0});
    rank.stream = stream.get();
    ASSERT_EQ(cuda.stream_begin_capture(stream.get(), test::kCaptureGlobal), cuda::kSuccess);
    group->all_reduce(data.buffer(), ReduceOp::kSum);
    test::GraphHandle graph = nullptr;
    EXPECT_EQ(cuda.stream_end_capture(stream.get(), &graph),
              904);  // cudaErrorStreamCaptureUnjoined
    rank.stream = nullptr;
    expect_sum(rank, *group);
  });
}

INSTANTIATE_TEST_SUITE_P(Library, NcclStreams, ::testing::Values("standin", "device"),
                         test::library_name);
INSTANTIATE_TEST_SUITE_P(Library, NcclGraphs, ::testing::Values("standin", "device"),
                         test::library_name);

}  // namespace
}  // namespace ddp
