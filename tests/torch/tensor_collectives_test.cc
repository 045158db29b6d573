// Every function of worker/ddp/tensors/tensor_collectives.h against its definition, computed here
// from all ranks' inputs.

#include "worker/ddp/tensors/tensor_collectives.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/torch/rank_threads.h"

namespace ddp::test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kByte,     at::kChar,  at::kInt,    at::kLong, at::kHalf,
                                     at::kBFloat16, at::kFloat, at::kDouble, at::kBool};

// Small whole numbers that depend on the rank and a salt: all sums and products that the tests form
// of them are exact in every type.
at::Tensor numbers(int rank, at::IntArrayRef sizes, at::ScalarType type, int salt = 0) {
  const at::Tensor values = at::arange(
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()), at::kLong);
  return ((values * 7 + rank * 3 + salt) % 5).view(sizes).to(type);
}

// A tensor in one of several layouts.
struct Placed {
  at::Tensor tensor;
  at::Tensor between;  // Elements that must keep their values; undefined if there are none.
};

enum class Layout { kContiguous, kTransposed, kGaps };
constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kTransposed, Layout::kGaps};

Placed place(const at::Tensor& values, Layout layout) {
  switch (layout) {
    case Layout::kContiguous:
      break;
    case Layout::kTransposed:
      return {values.transpose(0, -1).contiguous().transpose(0, -1), {}};
    case Layout::kGaps: {
      std::vector<std::int64_t> sizes = values.sizes().vec();
      sizes.back() *= 2;
      const at::Tensor whole = at::ones(sizes, values.options());
      const at::Tensor tensor = whole.slice(-1, 0, sizes.back(), 2);
      tensor.copy_(values);
      return {tensor, whole.slice(-1, 1, sizes.back(), 2)};
    }
  }
  return {values.clone(), {}};
}

// The ways in which a function is called.
struct Way {
  at::ScalarType type;
  Layout layout;
  bool async;
};

std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << at::toString(way.type) << ", layout " << static_cast<int>(way.layout)
             << (way.async ? ", async" : "");
}

void in_all_ways(const std::function<void(const Way&)>& body) {
  for (const at::ScalarType type : kTypes) {
    for (const Layout layout : kLayouts) {
      for (const bool async : {false, true}) {
        const Way way{type, layout, async};
        SCOPED_TRACE(testing::Message() << way);
        body(way);
      }
    }
  }
}

void complete(const WorkPtr& work, const Way& way) {
  ASSERT_NE(work, nullptr);
  if (way.async) {
    work->wait();
  } else {
    EXPECT_TRUE(work->done());
    work->wait();
  }
}

// bool is compared as bytes: one that is neither 0 nor 1 counts as true in some kernels only.
at::Tensor comparable(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return tensor.scalar_type() == at::kBool ? whole.view(at::kByte) : whole;
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(comparable(actual), comparable(expected))) << actual << "\nexpected\n"
                                                                   << expected;
}

void expect_equal(const Placed& actual, const at::Tensor& expected) {
  expect_equal(actual.tensor, expected);
  if (actual.between.defined()) expect_equal(actual.between, at::ones_like(actual.between));
}

// All ranks' numbers reduced, the plain way.
at::Tensor reduced(ReduceOp op, int size, at::IntArrayRef sizes, at::ScalarType type,
                   int salt = 0) {
  at::Tensor result;
  for (int rank = 0; rank < size; ++rank) {
    const at::Tensor next = numbers(rank, sizes, type, salt).to(at::kLong);
    if (rank == 0) {
      result = next;
      continue;
    }
    switch (op.kind()) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kPremulSum:
        result = result + next;
        break;
      case ReduceOp::kProd:
        result = result * next;
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kBand:
        result = at::bitwise_and(result, next);
        break;
      case ReduceOp::kBor:
        result = at::bitwise_or(result, next);
        break;
      case ReduceOp::kBxor:
        result = at::bitwise_xor(result, next);
        break;
    }
  }
  if (op.kind() == ReduceOp::kPremulSum) {
    return (result.to(at::kDouble) * op.factor()).to(type);
  }
  if (op.kind() != ReduceOp::kAvg) return result.to(type);
  const at::Tensor sum = result.to(type == at::kDouble ? at::kDouble : at::kFloat);
  return (sum * (1.0 / size)).to(type);
}

std::vector<ReduceOp> reductions_of(at::ScalarType type) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax};
  if (at::isFloatingType(type)) {
    ops.insert(ops.end(), {ReduceOp::kAvg, ReduceOp::premul_sum(0.5)});
  } else {
    ops.insert(ops.end(), {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor});
  }
  return ops;
}

class TensorCollectives : public testing::TestWithParam<std::vector<int>> {
 protected:
  static void run(const std::function<void(ProcessGroup&)>& body) {
    run_ranks(GetParam(), [&](const GroupPtr& group) { body(*group); });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, TensorCollectives,
                         testing::Values(std::vector<int>{2}, std::vector<int>{3},
                                         std::vector<int>{1, 1}),
                         [](const auto& tested) {
                           std::string name = "Nodes";
                           for (const int size : tested.param) name += "_" + std::to_string(size);
                           return name;
                         });

TEST_P(TensorCollectives, AllReduce) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (const ReduceOp op : reductions_of(way.type)) {
        SCOPED_TRACE(testing::Message() << "op " << static_cast<int>(op.kind()));
        const Placed tensor = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
        complete(all_reduce(tensor.tensor, group, op, way.async), way);
        expect_equal(tensor, reduced(op, group.size(), {3, 5}, way.type));
      }
    });
  });
}

TEST_P(TensorCollectives, AllReduceOfNothingAndOfMuch) {
  run([](ProcessGroup& group) {
    const at::Tensor empty = at::empty({0, 4});
    all_reduce(empty, group);
    const at::Tensor scalar = at::full({}, group.rank() + 1.0);
    all_reduce(scalar, group, ReduceOp::kMax);
    EXPECT_EQ(scalar.item<float>(), static_cast<float>(group.size()));
    const Placed large = place(numbers(group.rank(), {700, 300}, at::kFloat), Layout::kGaps);
    all_reduce(large.tensor, group);
    expect_equal(large, reduced(ReduceOp::kSum, group.size(), {700, 300}, at::kFloat));
  });
}

TEST_P(TensorCollectives, AllReduceCoalesced) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      const std::vector<std::vector<std::int64_t>> sizes = {{3, 5}, {1}, {2, 2, 2}};
      std::vector<Placed> placed;
      std::vector<at::Tensor> tensors;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto salt = static_cast<int>(i);
        placed.push_back(place(numbers(group.rank(), sizes[i], way.type, salt),
                               i == 1 ? Layout::kContiguous : way.layout));
        tensors.push_back(placed.back().tensor);
      }
      complete(all_reduce_coalesced(tensors, group, ReduceOp::kSum, way.async), way);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        expect_equal(placed[i], reduced(ReduceOp::kSum, group.size(), sizes[i], way.type,
                                        static_cast<int>(i)));
      }
    });
  });
}

TEST_P(TensorCollectives, Broadcast) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (Rank src = 0; src < group.size(); ++src) {
        const Placed tensor = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
        complete(broadcast(tensor.tensor, src, group, way.async), way);
        expect_equal(tensor, numbers(src, {3, 5}, way.type));
      }
    });
  });
}

TEST_P(TensorCollectives, ReduceChangesTheTensorOfDstAlone) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (Rank dst = 0; dst < group.size(); ++dst) {
        const Placed tensor = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
        complete(reduce(tensor.tensor, dst, group, ReduceOp::kSum, way.async), way);
        expect_equal(tensor, group.rank() == dst
                                 ? reduced(ReduceOp::kSum, group.size(), {3, 5}, way.type)
                                 : numbers(group.rank(), {3, 5}, way.type));
      }
    });
  });
}

// A tensor for each rank; `adjacent` ones are parts of one.
std::vector<at::Tensor> blank_list(int count, at::IntArrayRef sizes, const Way& way,
                                   bool adjacent) {
  std::vector<std::int64_t> stacked = sizes.vec();
  stacked.insert(stacked.begin(), count);
  if (adjacent) return at::zeros(stacked, way.type).unbind();
  std::vector<at::Tensor> list;
  for (int i = 0; i < count; ++i)
    list.push_back(place(at::zeros(sizes, way.type), way.layout).tensor);
  return list;
}

TEST_P(TensorCollectives, AllGather) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (const bool adjacent : {false, true}) {
        const auto list = blank_list(group.size(), {3, 5}, way, adjacent);
        const Placed tensor = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
        complete(all_gather(list, tensor.tensor, group, way.async), way);
        for (Rank rank = 0; rank < group.size(); ++rank) {
          expect_equal(list[static_cast<std::size_t>(rank)], numbers(rank, {3, 5}, way.type));
        }
      }
    });
  });
}

TEST_P(TensorCollectives, AllGatherOfDifferentSizes) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      std::vector<at::Tensor> list;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        list.push_back(place(at::zeros({rank + 1, 5}, way.type), way.layout).tensor);
      }
      const std::int64_t rows = group.rank() + 1;
      complete(all_gather(list, numbers(group.rank(), {rows, 5}, way.type), group, way.async), way);
      for (Rank rank = 0; rank < group.size(); ++rank) {
        expect_equal(list[static_cast<std::size_t>(rank)], numbers(rank, {rank + 1, 5}, way.type));
      }
    });
  });
}

TEST_P(TensorCollectives, AllGatherIntoTensorStacksAndConcatenates) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      std::vector<at::Tensor> all;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        all.push_back(numbers(rank, {3, 5}, way.type));
      }
      const Placed in = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
      const Placed stacked = place(at::zeros({group.size(), 3, 5}, way.type), way.layout);
      complete(all_gather_into_tensor(stacked.tensor, in.tensor, group, way.async), way);
      expect_equal(stacked, at::stack(all));
      const Placed joined = place(at::zeros({group.size() * 3, 5}, way.type), way.layout);
      complete(all_gather_into_tensor(joined.tensor, in.tensor, group, way.async), way);
      expect_equal(joined, at::cat(all));
    });
  });
}

TEST_P(TensorCollectives, ReduceScatterOfAListAndOfATensor) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      std::vector<at::Tensor> list;
      for (Rank part = 0; part < group.size(); ++part) {
        list.push_back(place(numbers(group.rank(), {3, 5}, way.type, part), way.layout).tensor);
      }
      const at::Tensor expected =
          reduced(ReduceOp::kSum, group.size(), {3, 5}, way.type, group.rank());
      const Placed out = place(at::zeros({3, 5}, way.type), way.layout);
      complete(reduce_scatter(out.tensor, list, group, ReduceOp::kSum, way.async), way);
      expect_equal(out, expected);
      const Placed again = place(at::zeros({3, 5}, way.type), way.layout);
      const Placed in = place(at::cat(list), way.layout);
      complete(reduce_scatter_tensor(again.tensor, in.tensor, group, ReduceOp::kSum, way.async),
               way);
      expect_equal(again, expected);
    });
  });
}

TEST_P(TensorCollectives, Gather) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (Rank dst = 0; dst < group.size(); ++dst) {
        std::vector<at::Tensor> list;
        if (group.rank() == dst) list = blank_list(group.size(), {3, 5}, way, dst == 0);
        const Placed tensor = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
        complete(gather(tensor.tensor, group, list, dst, way.async), way);
        for (std::size_t rank = 0; rank < list.size(); ++rank) {
          expect_equal(list[rank], numbers(static_cast<int>(rank), {3, 5}, way.type));
        }
      }
    });
  });
}

TEST_P(TensorCollectives, Scatter) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      for (Rank src = 0; src < group.size(); ++src) {
        std::vector<at::Tensor> list;
        if (group.rank() == src) {
          for (Rank rank = 0; rank < group.size(); ++rank) {
            list.push_back(place(numbers(rank, {3, 5}, way.type, src), way.layout).tensor);
          }
        }
        const Placed tensor = place(at::zeros({3, 5}, way.type), way.layout);
        complete(scatter(tensor.tensor, group, list, src, way.async), way);
        expect_equal(tensor, numbers(group.rank(), {3, 5}, way.type, src));
      }
    });
  });
}

// What rank `from` has for rank `to`: as many rows as the two say.
at::Tensor parcel(Rank from, Rank to, at::ScalarType type) {
  return numbers(from, {(from + 2 * to) % 4, 5}, type, to);
}

TEST_P(TensorCollectives, AllToAllOfUnequalTensors) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      std::vector<at::Tensor> in;
      std::vector<at::Tensor> out;
      std::vector<std::int64_t> rows;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        in.push_back(place(parcel(group.rank(), rank, way.type), way.layout).tensor);
        const at::Tensor blank = at::zeros_like(parcel(rank, group.rank(), way.type));
        out.push_back(place(blank, way.layout).tensor);
        rows.push_back(blank.size(0));
      }
      const std::int64_t all_rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
      const auto parts_of_one = at::zeros({all_rows, 5}, way.type).split_with_sizes(rows);
      for (const auto& list : {out, parts_of_one}) {
        complete(all_to_all(list, in, group, way.async), way);
        for (Rank rank = 0; rank < group.size(); ++rank) {
          expect_equal(list[static_cast<std::size_t>(rank)], parcel(rank, group.rank(), way.type));
        }
      }
    });
  });
}

TEST_P(TensorCollectives, AllToAllSingleWithSplitSizesAndWithout) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      std::vector<at::Tensor> sent;
      std::vector<at::Tensor> expected;
      std::vector<std::int64_t> in_sizes;
      std::vector<std::int64_t> out_sizes;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        sent.push_back(parcel(group.rank(), rank, way.type));
        in_sizes.push_back(sent.back().size(0));
        expected.push_back(parcel(rank, group.rank(), way.type));
        out_sizes.push_back(expected.back().size(0));
      }
      const Placed in = place(at::cat(sent), way.layout);
      const Placed out = place(at::zeros_like(at::cat(expected)), way.layout);
      complete(all_to_all_single(out.tensor, in.tensor, group, out_sizes, in_sizes, way.async),
               way);
      expect_equal(out, at::cat(expected));

      const Placed equal =
          place(numbers(group.rank(), {2 * group.size(), 3}, way.type), way.layout);
      const Placed turned = place(at::zeros({2 * group.size(), 3}, way.type), way.layout);
      complete(all_to_all_single(turned.tensor, equal.tensor, group, {}, {}, way.async), way);
      for (Rank rank = 0; rank < group.size(); ++rank) {
        expect_equal(turned.tensor.narrow(0, 2 * rank, 2),
                     numbers(rank, {2 * group.size(), 3}, way.type).narrow(0, 2 * group.rank(), 2));
      }
    });
  });
}

TEST_P(TensorCollectives, SendAndReceive) {
  run([](ProcessGroup& group) {
    in_all_ways([&](const Way& way) {
      const Rank next = (group.rank() + 1) % group.size();
      const Rank previous = (group.rank() + group.size() - 1) % group.size();
      const Placed out = place(numbers(group.rank(), {3, 5}, way.type), way.layout);
      const Placed in = place(at::zeros({3, 5}, way.type), way.layout);
      if (way.async) {
        // The tags are met in the other order.
        const Placed second = place(at::zeros({3, 5}, way.type), way.layout);
        const Placed more = place(numbers(group.rank(), {3, 5}, way.type, 1), way.layout);
        const auto late = irecv(second.tensor, previous, group, 8);
        const auto early = irecv(in.tensor, previous, group, 7);
        const auto sent = isend(out.tensor, next, group, 7);
        const auto sent_too = isend(more.tensor, next, group, 8);
        for (const auto& work : {early, late, sent, sent_too}) work->wait();
        expect_equal(second, numbers(previous, {3, 5}, way.type, 1));
      } else if (group.rank() == 0) {
        send(out.tensor, next, group);
        EXPECT_EQ(recv(in.tensor, previous, group), previous);
      } else {
        EXPECT_EQ(recv(in.tensor, previous, group), previous);
        send(out.tensor, next, group);
      }
      expect_equal(in, numbers(previous, {3, 5}, way.type));
    });
  });
}

TEST_P(TensorCollectives, Barriers) {
  run([](ProcessGroup& group) {
    EXPECT_TRUE(barrier(group)->done());
    barrier(group, /*async_op=*/true)->wait();
    monitored_barrier(group, std::chrono::seconds(30));
    monitored_barrier(group, {}, /*wait_all_ranks=*/true);
  });
}

TEST_P(TensorCollectives, GroupsOfSomeRanks) {
  run([](ProcessGroup& group) {
    const Rank last = group.size() - 1;
    const auto two = new_group(group, {last, 0});
    EXPECT_EQ(two != nullptr, group.rank() == 0 || group.rank() == last);
    if (two) {
      const at::Tensor tensor = at::full({4}, group.rank() + 1, at::kInt);
      broadcast(tensor, 1, *two);
      EXPECT_EQ(tensor[3].item<int>(), last + 1);
    }
    const auto all = new_group(group);
    ASSERT_NE(all, nullptr);
    EXPECT_EQ(all->size(), group.size());
    EXPECT_EQ(all->rank(), group.rank());

    // The last rank alone, rank 0 with all others; then rank 0 in none.
    std::vector<Rank> others(static_cast<std::size_t>(last));
    std::iota(others.rbegin(), others.rend(), 0);
    const auto part = split_group(group, {{last}, others});
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), group.rank() == last ? 1 : last);
    const at::Tensor count = at::ones({1});
    all_reduce(count, *part);
    EXPECT_EQ(count.item<float>(), static_cast<float>(part->size()));
    EXPECT_EQ(split_group(group, {{last}}) != nullptr, group.rank() == last);
  });
}

}  // namespace
}  // namespace ddp::test
