#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/link_streams.h"
#include "tests/support/process.h"
#include "tests/support/running_call.h"
#include "tests/support/worker_world.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/tree_order.h"
#include "worker/runtime/operations.h"

// reduce and reduce_scatter between nodes: the bits of an all_reduce, with fewer bytes on the wire.
namespace ddp {
namespace {

using std::chrono::seconds;
using test::Call;
using test::CallMemory;
using test::CallShape;
using test::RunningCall;

std::string name_of_nodes(const std::vector<int>& nodes) {
  std::string name = "nodes";
  for (const int size : nodes) name += "_" + std::to_string(size);
  return name;
}

class NodeReduction : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  int world_size() const { return test::world_size_of(GetParam()); }
  bool alike() const {
    return std::adjacent_find(GetParam().begin(), GetParam().end(), std::not_equal_to<>()) ==
           GetParam().end();
  }

  // All types with all reductions they have, in turns with the rest; nothing is too small.
  std::vector<CallShape> shapes() const {
    constexpr std::array kCounts = {0U, 1U, 5U, 63U, 1000U, 20'011U};
    std::vector<CallShape> shapes;
    for (std::size_t type = 0; type < kDTypes; ++type) {
      for (std::size_t kind = 0; kind < ReduceOp::kKinds; ++kind) {
        const auto op = static_cast<ReduceOp::Kind>(kind);
        if (!valid(static_cast<DType>(type), op)) continue;
        for (const Call call : {Call::kAllReduce, Call::kReduce, Call::kReduceScatter}) {
          const std::uint64_t seed = shapes.size() + 1;
          const std::size_t count = kCounts[(seed + type) % kCounts.size()];
          const auto root = static_cast<Rank>(seed % static_cast<std::uint64_t>(world_size()));
          shapes.push_back({call, static_cast<DType>(type), op, count, root, seed, seed % 2 == 0});
        }
      }
    }
    // Several times the slots.
    for (const Call call : {Call::kReduce, Call::kReduceScatter}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        const std::size_t blocks =
            call == Call::kReduceScatter ? static_cast<std::size_t>(world_size()) : 1;
        shapes.push_back(
            {call, type, ReduceOp::kSum, 1'500'007 / blocks, 1, 7 + shapes.size(), false});
      }
    }
    return shapes;
  }
};

TEST_P(NodeReduction, HasTheBitsOfTheTree) {
  const std::vector<CallShape> list = shapes();
  std::vector<test::CallAnswer> answers;
  for (const CallShape& shape : list) answers.push_back(test::answer_of(shape, world_size()));
  for (const collectives::Algorithm in_node :
       {collectives::Algorithm::kStaged, collectives::Algorithm::kDirect}) {
    test::with_groups(GetParam(), [&](ProcessGroup& group) {
      collectives::CostTable costs;
      costs.forced_in_node = in_node;
      // The other time what is chosen: an exchange, where that can be.
      if (in_node == collectives::Algorithm::kStaged)
        costs.forced_between = collectives::Algorithm::kParts;
      static_cast<runtime::Group&>(group).choose(collectives::Choice(costs));
      CallMemory memory(group, std::size_t{16} << 20);
      for (std::size_t i = 0; i < list.size(); ++i) {
        // All in place, none, or some.
        const bool registered = i % 3 == 0 || (i % 3 == 1 && group.rank() % 2 == 0);
        memory.clear();
        RunningCall(group, list[i], answers[i], memory, registered).check();
      }
    });
  }
}

// Bytes from node to node.
class Wire {
 public:
  explicit Wire(const std::vector<int>& nodes)
      : nodes_(nodes.size()), sent_(nodes.size() * nodes.size()) {
    const transport::Topology world(nodes, 0);
    transports_ = test::transports_over(nodes, [&](Rank from, Rank to, UniqueFd socket) {
      return std::make_unique<test::CountedStream>(std::move(socket),
                                                   at(world.node_of(from), world.node_of(to)));
    });
    for (const auto& transport : transports_)
      collectives_.push_back(std::make_unique<collectives::Collectives>(*transport));
  }

  void choose(const collectives::Choice& choice) {
    for (auto& each : collectives_) each->choose(choice);
  }

  void run(const std::function<collectives::Operation(Rank)>& make) {
    for (auto& each : sent_) each = 0;
    test::on_ranks(static_cast<int>(transports_.size()), [&](Rank rank) {
      collectives::Operation operation = make(rank);
      operation.timeout = seconds(60);
      operation.deadline = Clock::now() + operation.timeout;
      const auto failure = collectives_[static_cast<std::size_t>(rank)]->run(operation);
      EXPECT_FALSE(failure) << failure->text;
    });
  }

  std::atomic<std::size_t>& at(int from, int to) {
    return sent_[static_cast<std::size_t>(from) * nodes_ + static_cast<std::size_t>(to)];
  }
  std::size_t out_of(int node) {
    std::size_t sum = 0;
    for (int to = 0; to < static_cast<int>(nodes_); ++to) sum += at(node, to);
    return sum;
  }
  std::size_t into(int node) {
    std::size_t sum = 0;
    for (int from = 0; from < static_cast<int>(nodes_); ++from) sum += at(from, node);
    return sum;
  }

 private:
  std::size_t nodes_;
  std::vector<std::atomic<std::size_t>> sent_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<collectives::Collectives>> collectives_;
};

// Of what a rank tells each of its lane before the data.
constexpr std::size_t kGreetingBytes = sizeof(std::uint64_t) + sizeof(collectives::OpRecord);

// Bytes of a node's partial sums for an element; of lone ranks they are the inputs.
std::size_t width_of(const transport::Topology& topology, DType type, int node) {
  if (topology.nodes() == topology.world_size()) return dtype_bytes(type);
  const Rank first = topology.first(node);
  return subtrees_of(first, first + topology.local_size(node), topology.world_size()).size() *
         dtype_bytes(accumulator_of(type));
}

TEST_P(NodeReduction, OfAScatterSendsEachNodeItsBlocksAlone) {
  Wire wire(GetParam());
  const transport::Topology topology(GetParam(), 0);
  const auto ranks = static_cast<std::size_t>(world_size());
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF64}) {
    const std::size_t count = 20'011;
    const std::size_t element = dtype_bytes(type);
    std::vector<std::vector<std::byte>> in(ranks), out(ranks);
    wire.run([&](Rank rank) {
      auto& input = in[static_cast<std::size_t>(rank)];
      auto& output = out[static_cast<std::size_t>(rank)];
      input.resize(count * element * ranks);
      output.resize(count * element);
      return runtime::operations::reduce_scatter({input.data(), count * ranks, type},
                                                 {output.data(), count, type}, ReduceOp::kSum,
                                                 world_size());
    });
    for (int from = 0; from < topology.nodes(); ++from) {
      for (int to = 0; to < topology.nodes(); ++to) {
        if (from == to) continue;
        const auto blocks = static_cast<std::size_t>(topology.local_size(to));
        EXPECT_EQ(wire.at(from, to), static_cast<std::size_t>(topology.lanes()) * kGreetingBytes +
                                         width_of(topology, type, from) * blocks * count)
            << name_of(type) << " from node " << from << " to " << to;
      }
    }
  }
}

// The bound of cut.h.
TEST_P(NodeReduction, ToARootKeepsEveryLinkBelowTheBound) {
  Wire wire(GetParam());
  const transport::Topology topology(GetParam(), 0);
  const int nodes = topology.nodes();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const std::size_t count = 400'001;
    const std::size_t bytes = count * dtype_bytes(type);
    std::size_t widest = 0;
    for (int node = 0; node < nodes; ++node)
      widest = std::max(widest, width_of(topology, type, node));
    const double a = static_cast<double>(widest) / static_cast<double>(dtype_bytes(type));
    const double bound = a * a * (nodes - 1) / (a * nodes - 1) * static_cast<double>(bytes);
    // Parts begin at lines, and greetings come on top.
    const double slack = 1000.0 * nodes;
    const double most = 1.01 * bound + slack;
    // Of unequal nodes one may have little to add up, and so most of its own to send.
    const auto whole = static_cast<double>(widest * count);
    const double most_out = alike() ? most : whole + slack;
    for (Rank root = 0; root < world_size(); ++root) {
      std::vector<std::vector<std::byte>> data(static_cast<std::size_t>(world_size()));
      wire.run([&](Rank rank) {
        auto& own = data[static_cast<std::size_t>(rank)];
        own.resize(bytes);
        return runtime::operations::reduce({own.data(), count, type}, root, ReduceOp::kSum,
                                           world_size());
      });
      for (int node = 0; node < nodes; ++node) {
        EXPECT_LE(static_cast<double>(wire.into(node)), most)
            << name_of(type) << " into node " << node << " of a reduce to rank " << root;
        EXPECT_LE(static_cast<double>(wire.out_of(node)), most_out)
            << name_of(type) << " out of node " << node << " of a reduce to rank " << root;
      }
      // Two nodes: all that moves goes to the root.
      if (nodes == 2 && a == 1) {
        EXPECT_LE(wire.out_of(topology.node_of(root)), 1000U) << "reduce to rank " << root;
      }
    }
  }
}

// One trip, with the bytes of two: all that a node has, or a part of it and a part of the result.
TEST_P(NodeReduction, OfAnAllReduceSendsAsMuchInAnExchangeAsInParts) {
  const transport::Topology topology(GetParam(), 0);
  for (const collectives::Algorithm between :
       {collectives::Algorithm::kAuto, collectives::Algorithm::kParts}) {
    Wire wire(GetParam());
    collectives::CostTable costs;
    costs.forced_between = between;
    wire.choose(collectives::Choice(costs));
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const std::size_t count = 400'000;
      const auto nodes = static_cast<std::size_t>(topology.nodes());
      std::vector<std::vector<std::byte>> data(static_cast<std::size_t>(world_size()));
      wire.run([&](Rank rank) {
        auto& own = data[static_cast<std::size_t>(rank)];
        own.resize(count * dtype_bytes(type));
        return runtime::operations::all_reduce({own.data(), count, type}, ReduceOp::kSum);
      });
      for (int node = 0; node < topology.nodes(); ++node) {
        const std::size_t each = width_of(topology, type, node) + dtype_bytes(type);
        const double expected = static_cast<double>(each * count * (nodes - 1) / nodes);
        EXPECT_NEAR(static_cast<double>(wire.out_of(node)), expected,
                    0.01 * expected + 1000.0 * world_size())
            << name_of(type) << " out of node " << node << ", " << name_of(between);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, NodeReduction,
                         ::testing::Values(std::vector<int>{1, 1}, std::vector<int>{2, 2},
                                           std::vector<int>{3, 1}, std::vector<int>{1, 1, 1},
                                           std::vector<int>{2, 3, 1}, std::vector<int>{2, 2, 2},
                                           std::vector<int>{2, 4, 3, 2},
                                           std::vector<int>{1, 1, 1, 1, 1},
                                           std::vector<int>{2, 1, 3, 1, 2}),
                         [](const auto& nodes) { return name_of_nodes(nodes.param); });

// A root that reads nothing for a while: what is on its way to it must not be overwritten by the
// results that follow.
TEST(NodeReductionHeld, ResultsWaitForARootThatDoesNotRead) {
  test::Dam dam;
  dam.allowed = kGreetingBytes;
  const auto transports = test::transports_over(
      {1, 1, 1},
      [&](Rank from, Rank /*to*/, UniqueFd socket) -> std::unique_ptr<transport::DataStream> {
        if (from != 0) return std::make_unique<transport::SocketStream>(std::move(socket));
        return std::make_unique<test::HeldStream>(std::move(socket), dam);
      });
  constexpr std::size_t kCount = std::size_t{8} << 20;  // Floats; more than 20 chunks.
  std::vector<std::vector<float>> values(3, std::vector<float>(kCount));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i)
      values[rank][i] = static_cast<float>((i / 1000) * (rank + 1));
  }
  std::thread releasing([&] {
    EXPECT_TRUE(test::wait_until([&] { return dam.reached.load(); }));
    // Everything that can move has moved; less would test less, but not fail.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // sleep: nothing tells that
    dam.released = true;
  });
  test::on_ranks(3, [&](Rank rank) {
    collectives::Operation operation = runtime::operations::reduce(
        {values[static_cast<std::size_t>(rank)].data(), kCount, DType::kF32}, 0, ReduceOp::kSum, 3);
    operation.timeout = seconds(60);
    operation.deadline = Clock::now() + operation.timeout;
    const auto failure =
        collectives::Collectives(*transports[static_cast<std::size_t>(rank)]).run(operation);
    EXPECT_FALSE(failure) << failure->text;
  });
  releasing.join();
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(values[0][i], static_cast<float>(i / 1000 * 6)) << "element " << i;
}

// Who gets nothing of the result knows at its end that the root has all of it.
TEST(NodeReductionHeld, NobodyIsThroughBeforeTheRootHasItsResult) {
  const std::vector<int> nodes = {1, 1, 1};
  std::vector<std::vector<float>> values(3, std::vector<float>(std::size_t{1} << 20, 1.0F));
  const auto reduce_of = [&](Rank rank) {
    auto& own = values[static_cast<std::size_t>(rank)];
    return runtime::operations::reduce({own.data(), own.size(), DType::kF32}, 0, ReduceOp::kSum, 3);
  };
  Wire wire(nodes);
  wire.run(reduce_of);
  // All that rank 2 has for the root but the last byte.
  test::Dam dam;
  dam.allowed = wire.at(2, 0) - 1;
  const auto transports = test::transports_over(
      nodes, [&](Rank from, Rank to, UniqueFd socket) -> std::unique_ptr<transport::DataStream> {
        if (from != 0 || to != 2)
          return std::make_unique<transport::SocketStream>(std::move(socket));
        return std::make_unique<test::HeldStream>(std::move(socket), dam);
      });
  std::thread releasing([&] {
    EXPECT_TRUE(test::wait_until([&] { return dam.reached.load(); }));
    // Who could be through is through; less would test less, but not fail.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // sleep: nothing tells that
    dam.released = true;
  });
  test::on_ranks(3, [&](Rank rank) {
    collectives::Operation operation = reduce_of(rank);
    operation.timeout = seconds(60);
    operation.deadline = Clock::now() + operation.timeout;
    const auto failure =
        collectives::Collectives(*transports[static_cast<std::size_t>(rank)]).run(operation);
    EXPECT_FALSE(failure) << failure->text;
    EXPECT_TRUE(dam.released) << "rank " << rank;
  });
  releasing.join();
}

// In the middle: the data of a rank has stopped, and nobody can have finished, when one aborts.
TEST(NodeReductionHeld, AbortInTheMiddleReachesEveryRank) {
  for (const bool scatter : {false, true}) {
    test::Dam dam;
    dam.allowed = kGreetingBytes + 100'000;
    const std::vector<int> nodes = {2, 2, 1};
    auto transports = test::transports_over(
        nodes,
        [&](Rank from, Rank /*to*/, UniqueFd socket) -> std::unique_ptr<transport::DataStream> {
          if (from != 2) return std::make_unique<transport::SocketStream>(std::move(socket));
          return std::make_unique<test::HeldStream>(std::move(socket), dam);
        });
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    const auto store = std::make_shared<test::HashStore>();
    for (auto& transport : transports) {
      groups.push_back(runtime::Group::make(std::move(transport), 0, test::options_of(seconds(60)),
                                            test::local_meeting(store)));
    }
    std::atomic<int> failed{0};
    std::thread aborting([&] {
      EXPECT_TRUE(test::wait_until([&] { return dam.reached.load(); }));
      groups[0]->abort("enough");
    });
    test::on_ranks(5, [&](Rank rank) {
      ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
      std::vector<float> in(5 << 20);
      std::vector<float> out(1 << 20);
      const Buffer input{in.data(), in.size(), DType::kF32};
      const Buffer output{out.data(), out.size(), DType::kF32};
      try {
        (scatter ? group.reduce_scatter(input, output, ReduceOp::kSum)
                 : group.reduce(input, 2, ReduceOp::kSum))
            ->wait();
        // Ranks whose part was through before: they learn it from the next call.
        group.barrier()->wait();
      } catch (const CollectiveError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0 aborted the group: enough"));
        ++failed;
      }
    });
    aborting.join();
    EXPECT_EQ(failed.load(), 5) << (scatter ? "reduce_scatter" : "reduce");
  }
}

// As an all_reduce's: who is missing, and nobody else.
TEST(NodeReductionHeld, DeadlineBlamesWhoIsMissing) {
  for (const auto& nodes : {std::vector<int>{2, 1}, std::vector<int>{1, 1, 1}}) {
    for (const bool scatter : {false, true}) {
      for (Rank absent = 0; absent < 3; ++absent) {
        const auto groups = test::thread_groups(nodes);
        test::on_ranks(3, [&](Rank rank) {
          if (rank == absent) return;
          ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
          // So little that a rank can send all it has although nobody takes it.
          std::vector<float> in(30'000);
          std::vector<float> out(10'000);
          const Buffer input{in.data(), in.size(), DType::kF32};
          const OpOptions options{std::chrono::milliseconds(500), ""};
          try {
            (scatter ? group.reduce_scatter(input, {out.data(), out.size(), DType::kF32},
                                            ReduceOp::kSum, options)
                     : group.reduce(input, 0, ReduceOp::kSum, options))
                ->wait();
            ADD_FAILURE() << "no CollectiveError";
          } catch (const CollectiveError& error) {
            EXPECT_EQ(error.code, Errc::kTimeout);
            EXPECT_EQ(error.suspect_rank, absent) << error.what();
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace ddp
