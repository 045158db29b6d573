#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/nccl_ranks.h"

// The result of every operation, against plain loops: on the stand-in, and on a device if there is
// one.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::DeviceArray;
using test::NcclRank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kTypes[] = {DType::kU8,  DType::kI8,   DType::kI32, DType::kI64,
                            DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// Small integers: exact in every type, also as a product over four ranks.
double value_of(Rank rank, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 5 + i) % 3 + 1);
}

std::vector<double> values_of(Rank rank, std::size_t count, std::size_t begin = 0) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, begin + i);
  return values;
}

std::vector<double> zeros(std::size_t count) { return std::vector<double>(count); }

double combined(ReduceOp op, const std::vector<double>& inputs, double factor) {
  double result = inputs.front() * factor;
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const double value = inputs[rank] * factor;
    switch (op.kind()) {
      case ReduceOp::kProd:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      default:
        result += value;
    }
  }
  return op.kind() == ReduceOp::kAvg ? result / static_cast<double>(inputs.size()) : result;
}

std::vector<double> reduction(ReduceOp op, int size, std::size_t count, std::size_t begin = 0) {
  std::vector<double> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double> inputs;
    for (Rank rank = 0; rank < size; ++rank) inputs.push_back(value_of(rank, begin + i));
    expected[i] = combined(op, inputs, op.factor());
  }
  return expected;
}

void expect_near(DType type, const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  // Only an average of three has a rounded value.
  const double limit = is_half(type) ? 1e-2 : 1e-6;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], limit * std::abs(expected[i])) << "element " << i;
  }
}

using NcclOperations = test::NcclRanksTest;

TEST_P(NcclOperations, AllReduceOfEveryTypeAndReduction) {
  everywhere([&](NcclGroup& group) {
    for (const DType type : kTypes) {
      for (const ReduceOp op :
           {ReduceOp(ReduceOp::kSum), ReduceOp(ReduceOp::kAvg), ReduceOp(ReduceOp::kProd),
            ReduceOp(ReduceOp::kMin), ReduceOp(ReduceOp::kMax), ReduceOp::premul_sum(0.5)}) {
        if (!valid(type, op.kind())) continue;
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}}) {
          const auto data = array(group, type, values_of(group.rank(), count));
          group.all_reduce(data.buffer(), op)->wait();
          expect_near(type, data.values(), reduction(op, group.size(), count));
        }
      }
    }
  });
}

TEST_P(NcclOperations, FactorsMayDifferBetweenRanks) {
  everywhere([&](NcclGroup& group) {
    const auto data = array(group, DType::kF64, {1.0});
    group.all_reduce(data.buffer(), ReduceOp::premul_sum(group.rank() + 0.25))->wait();
    double expected = 0;
    for (Rank rank = 0; rank < group.size(); ++rank) expected += rank + 0.25;
    EXPECT_EQ(data.values().front(), expected);
  });
}

TEST_P(NcclOperations, CoalescedAllReduce) {
  everywhere([&](NcclGroup& group) {
    std::vector<DeviceArray> arrays;
    std::vector<Buffer> buffers;
    for (const std::size_t count : {std::size_t{7}, std::size_t{0}, std::size_t{300}}) {
      arrays.push_back(array(group, DType::kF32, values_of(group.rank(), count, count)));
      buffers.push_back(arrays.back().buffer());
    }
    group.all_reduce_coalesced(buffers, ReduceOp::kSum)->wait();
    for (const auto& each : arrays) {
      const std::size_t count = each.buffer().count;
      EXPECT_EQ(each.values(), reduction(ReduceOp::kSum, group.size(), count, count));
    }
  });
}

TEST_P(NcclOperations, BroadcastAndReduceOfEveryRoot) {
  everywhere([&](NcclGroup& group) {
    for (const DType type : kTypes) {
      for (Rank root = 0; root < group.size(); ++root) {
        const auto data = array(group, type, values_of(group.rank(), 100));
        group.broadcast(data.buffer(), root)->wait();
        EXPECT_EQ(data.values(), values_of(root, 100));

        const auto sum = array(group, type, values_of(group.rank(), 100));
        group.reduce(sum.buffer(), root, ReduceOp::kSum)->wait();
        EXPECT_EQ(sum.values(), group.rank() == root ? reduction(ReduceOp::kSum, group.size(), 100)
                                                     : values_of(group.rank(), 100));
      }
    }
  });
}

TEST_P(NcclOperations, AllGatherAndReduceScatter) {
  everywhere([&](NcclGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    const auto own = static_cast<std::size_t>(group.rank());
    for (const DType type : kTypes) {
      std::vector<double> expected;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        const auto part = values_of(rank, 50);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const auto in = array(group, type, values_of(group.rank(), 50));
      const auto out = array(group, type, zeros(50 * size));
      group.all_gather(in.buffer(), out.buffer())->wait();
      EXPECT_EQ(out.values(), expected);

      auto start = zeros(50 * size);
      for (std::size_t i = 0; i < 50; ++i) start[own * 50 + i] = value_of(group.rank(), i);
      const auto in_place = array(group, type, start);
      group.all_gather(in_place.part(own * 50, 50), in_place.buffer())->wait();
      EXPECT_EQ(in_place.values(), expected);

      const auto parts = array(group, type, values_of(group.rank(), 50 * size));
      const auto slice = array(group, type, zeros(50));
      group.reduce_scatter(parts.buffer(), slice.buffer(), ReduceOp::kSum)->wait();
      EXPECT_EQ(slice.values(), reduction(ReduceOp::kSum, group.size(), 50, own * 50));
      group.reduce_scatter(parts.buffer(), parts.part(own * 50, 50), ReduceOp::kMax)->wait();
      const auto all = parts.values();
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(own * 50);
      EXPECT_EQ(std::vector<double>(begin, begin + 50),
                reduction(ReduceOp::kMax, group.size(), 50, own * 50));
    }
  });
}

TEST_P(NcclOperations, GatherAndScatterOfEveryRoot) {
  everywhere([&](NcclGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    for (const DType type : kTypes) {
      for (Rank root = 0; root < group.size(); ++root) {
        const bool is_root = group.rank() == root;
        const auto in = array(group, type, values_of(group.rank(), 20));
        const auto out = array(group, type, zeros(is_root ? 20 * size : 0));
        group.gather(in.buffer(), out.buffer(), root)->wait();
        for (Rank rank = 0; is_root && rank < group.size(); ++rank) {
          const auto all = out.values();
          const auto begin = all.begin() + rank * 20;
          EXPECT_EQ(std::vector<double>(begin, begin + 20), values_of(rank, 20));
        }
        const auto whole = array(group, type, values_of(root, is_root ? 20 * size : 0));
        const auto part = array(group, type, zeros(20));
        group.scatter(whole.buffer(), part.buffer(), root)->wait();
        EXPECT_EQ(part.values(), values_of(root, 20, static_cast<std::size_t>(group.rank()) * 20));
      }
    }
  });
}

TEST_P(NcclOperations, TheRootsPartMayBeInPlace) {
  everywhere([&](NcclGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    const auto last = static_cast<std::size_t>(group.size() - 1);
    const auto own = array(group, DType::kI32, values_of(group.rank(), 4));
    const auto all = array(group, DType::kI32, values_of(group.size() - 1, 4 * size, 4));
    const bool is_root = group.rank() == group.size() - 1;
    const Buffer slot = all.part(last * 4, 4);
    group.gather(is_root ? slot : own.buffer(), all.buffer(), group.size() - 1)->wait();
    const auto got = all.values();
    for (std::size_t rank = 0; is_root && rank < last; ++rank) {
      EXPECT_EQ(got[rank * 4], value_of(static_cast<Rank>(rank), 0));
    }
    if (is_root) {
      EXPECT_EQ(got[last * 4], value_of(group.rank(), 4 + last * 4));
    }
  });
}

TEST_P(NcclOperations, AllToAll) {
  everywhere([&](NcclGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    for (const DType type : kTypes) {
      const auto in = array(group, type, values_of(group.rank(), 10 * size));
      const auto out = array(group, type, zeros(10 * size));
      group.all_to_all(in.buffer(), out.buffer())->wait();
      const auto got = out.values();
      for (Rank from = 0; from < group.size(); ++from) {
        const auto begin = got.begin() + from * 10;
        EXPECT_EQ(std::vector<double>(begin, begin + 10),
                  values_of(from, 10, static_cast<std::size_t>(group.rank()) * 10));
      }
    }
  });
}

// Rank r sends (r + d) % 3 elements to rank d, so that some send nothing.
TEST_P(NcclOperations, AllToAllAndAllGatherOfUnequalParts) {
  everywhere([&](NcclGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    const auto own = static_cast<std::size_t>(group.rank());
    const auto part = [](std::size_t from, std::size_t to) { return (from + to) % 3; };
    std::vector<std::size_t> sends(size);
    std::vector<std::size_t> receives(size);
    std::vector<double> expected;
    for (std::size_t peer = 0; peer < size; ++peer) {
      sends[peer] = part(own, peer);
      receives[peer] = part(peer, own);
      std::size_t begin = 0;
      for (std::size_t to = 0; to < own; ++to) begin += part(peer, to);
      const auto values = values_of(static_cast<Rank>(peer), receives[peer], begin);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    const auto count = [](const auto& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    };
    const auto in = array(group, DType::kI64, values_of(group.rank(), count(sends)));
    const auto out = array(group, DType::kI64, zeros(count(receives)));
    group.all_to_allv(in.buffer(), sends, out.buffer(), receives)->wait();
    EXPECT_EQ(out.values(), expected);

    std::vector<std::size_t> counts(size);
    std::vector<double> gathered;
    for (std::size_t rank = 0; rank < size; ++rank) {
      counts[rank] = rank % 2 * 5 + rank;
      const auto values = values_of(static_cast<Rank>(rank), counts[rank]);
      gathered.insert(gathered.end(), values.begin(), values.end());
    }
    const auto mine = array(group, DType::kF16, values_of(group.rank(), counts[own]));
    const auto all = array(group, DType::kF16, zeros(gathered.size()));
    group.all_gatherv(mine.buffer(), all.buffer(), counts)->wait();
    EXPECT_EQ(all.values(), gathered);
  });
}

TEST_P(NcclOperations, SendsReceivesAndBatches) {
  everywhere([&](NcclGroup& group) {
    const Rank next = (group.rank() + 1) % group.size();
    const Rank before = (group.rank() + group.size() - 1) % group.size();
    const auto out = array(group, DType::kBF16, values_of(group.rank(), 33));
    const auto in = array(group, DType::kBF16, zeros(33));
    // A ring in which everybody sends and receives at once, with itself in a world of one.
    group
        .batch({{Transfer::Direction::kRecv, before, in.buffer()},
                {Transfer::Direction::kSend, next, out.buffer()}})
        ->wait();
    EXPECT_EQ(in.values(), values_of(before, 33));
    if (group.size() == 1) return;
    const auto message = array(group, DType::kF32, values_of(group.rank(), 9));
    if (group.rank() == 0) group.send(message.buffer(), 1, 7)->wait();
    if (group.rank() == 1) {
      group.recv(message.buffer(), 0, 7)->wait();
      EXPECT_EQ(message.values(), values_of(0, 9));
    }
  });
}

TEST_P(NcclOperations, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (int size = 1; size <= 4; ++size) {
    const test::Shared<std::atomic<int>> come;
    world(size, [&](NcclRank& rank) {
      const auto group = rank.group();
      for (int turn = 1; turn <= 5; ++turn) {
        ++*come;
        group->barrier({milliseconds(0), "turn", true})->wait();
        EXPECT_GE(come->load(), turn * size);
      }
    });
  }
}

TEST_P(NcclOperations, ManyOperationsStayInOrder) {
  everywhere([&](NcclGroup& group) {
    const auto data = array(group, DType::kF64, {1.0});
    WorkPtr last;
    for (int i = 0; i < 40; ++i) last = group.all_reduce(data.buffer(), ReduceOp::kAvg);
    for (int i = 0; i < 5; ++i) last = group.all_reduce(data.buffer(), ReduceOp::kSum);
    last->wait();
    EXPECT_EQ(data.values().front(), std::pow(group.size(), 5));
  });
}

TEST_P(NcclOperations, ThousandsOfOperationsMayBeInFlight) {
  for (const int size : {1, 2}) {
    const int count = size == 1 ? 5000 : 1000;  // Processes that share a device take turns.
    world(size, [&](NcclRank& rank) {
      const auto group = rank.group();
      const auto data = array(*group, DType::kI32, {1});
      WorkPtr last;
      for (int i = 0; i < count; ++i) last = group->all_reduce(data.buffer(), ReduceOp::kMax);
      last->wait();
      group->all_reduce(data.buffer(), ReduceOp::kSum)->wait();
      EXPECT_EQ(data.values().front(), size);
    });
  }
}

TEST_P(NcclOperations, ThreadsMayUseAGroupEach) {
  world(2, [&](NcclRank& rank) {
    const auto first = rank.group();
    const auto second = first->new_group(std::vector<Rank>{0, 1});
    const auto one = array(*first, DType::kF64, {1});
    const auto other = array(*first, DType::kF64, {1});
    const auto double_often = [](ProcessGroup& group, const DeviceArray& data) {
      for (int i = 0; i < 30; ++i) group.all_reduce(data.buffer(), ReduceOp::kSum)->wait();
    };
    std::thread thread([&] { double_often(*second, other); });
    double_often(*first, one);
    thread.join();
    EXPECT_EQ(one.values().front(), std::pow(2, 30));
    EXPECT_EQ(other.values().front(), std::pow(2, 30));
  });
}

TEST_P(NcclOperations, TheCallersDeviceStaysCurrent) {
  everywhere([&](NcclGroup& group) {
    const int other = library_->device_count().value() - 1;  // Not the device of most ranks.
    library_->cuda().set_device(other);
    const auto data = array(group, DType::kF32, {1.0});
    group.barrier()->wait();
    int current = -1;
    library_->cuda().get_device(&current);
    EXPECT_EQ(current, other);
    EXPECT_EQ(group.allocate(std::size_t{1} << 60), nullptr);
    group.barrier()->wait();  // A call that failed is forgotten.
  });
}

TEST_P(NcclOperations, SubGroupsHaveTheirOwnRanks) {
  world(4, [&](NcclRank& rank) {
    const auto all = rank.group();
    NcclGroup& group = *all;
    const std::vector<Rank> odd{1, 3};
    const auto pair = group.new_group(odd);
    EXPECT_EQ(pair != nullptr, group.rank() % 2 == 1);
    if (pair) {
      EXPECT_EQ(pair->size(), 2);
      EXPECT_EQ(pair->rank(), group.rank() / 2);
      const auto data = array(group, DType::kI32, {group.rank() + 0.0});
      pair->all_reduce(data.buffer(), ReduceOp::kSum)->wait();
      EXPECT_EQ(data.values().front(), 4);
    }
    // Ranks 0, 1, 2 in reverse order; rank 3 takes no part.
    const auto turned = group.split(group.rank() == 3 ? -1 : 5, -group.rank());
    EXPECT_EQ(turned == nullptr, group.rank() == 3);
    if (turned) {
      EXPECT_EQ(turned->rank(), 2 - group.rank());
      const auto data = array(group, DType::kI32, {group.rank() + 0.0});
      turned->broadcast(data.buffer(), 0)->wait();
      EXPECT_EQ(data.values().front(), 2);
    }
    group.monitored_barrier();
  });
}

TEST_P(NcclOperations, ArgumentsThatMakeNoSenseAreRefused) {
  world(1, [&](NcclRank& rank) {
    const auto all = rank.group();
    NcclGroup& group = *all;
    const auto ints = array(group, DType::kI32, zeros(4));
    const auto floats = array(group, DType::kF32, zeros(4));
    const Buffer nowhere{nullptr, 3, DType::kF32};
    const auto refused = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    for (const auto kind : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      EXPECT_THAT(refused([&] { group.all_reduce(ints.buffer(), kind); }),
                  HasSubstr("all_reduce: NCCL has no b"));
    }
    EXPECT_THAT(refused([&] { group.all_reduce(ints.buffer(), ReduceOp::kAvg); }),
                HasSubstr("avg of i32"));
    EXPECT_THAT(refused([&] { group.all_reduce(nowhere, ReduceOp::kSum); }),
                HasSubstr("no address"));
    EXPECT_THAT(refused([&] { group.broadcast(ints.buffer(), 1); }), HasSubstr("rank 1 is not in"));
    EXPECT_THAT(refused([&] { group.all_gather(ints.buffer(), floats.buffer()); }),
                HasSubstr("input of i32 and output of f32"));
    EXPECT_THAT(refused([&] { group.all_gather(ints.buffer(), ints.part(0, 3)); }),
                HasSubstr("output of 3 elements, but 4 are needed"));
    EXPECT_THAT(
        refused([&] { group.reduce_scatter(ints.part(0, 3), ints.buffer(), ReduceOp::kSum); }),
        HasSubstr("input of 3 elements, but 4 are needed"));
    EXPECT_THAT(refused([&] { group.all_to_all(ints.buffer(), ints.buffer()); }),
                HasSubstr("the same memory"));
    EXPECT_THAT(refused([&] { group.send(ints.buffer(), 0); }), HasSubstr("this rank itself"));
    EXPECT_THAT(refused([&] { group.recv(ints.buffer(), 2); }), HasSubstr("rank 2 is not in"));
    group.barrier()->wait();  // None of them counts as issued.
  });
}

INSTANTIATE_TEST_SUITE_P(Library, NcclOperations, ::testing::Values("standin", "device"),
                         test::library_name);

}  // namespace
}  // namespace ddp
