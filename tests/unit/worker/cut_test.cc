#include "worker/collectives/cut.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/collectives/tree_order.h"

namespace ddp::collectives {
namespace {

OpRecord record_of(OpKind kind, DType type, std::size_t count, Rank root = -1) {
  OpRecord record;
  record.kind = kind;
  record.type = static_cast<std::uint32_t>(type);
  record.count = count;
  record.root = root;
  return record;
}

const std::vector<std::vector<int>> kWorlds = {
    {1, 1},    {2, 2},    {3, 1},       {1, 1, 1},       {2, 3, 1},
    {2, 2, 2}, {4, 2, 3}, {1, 2, 1, 1}, {2, 1, 3, 1, 2}, {1, 1, 1, 1, 1}};

// Every element of every chunk belongs to one part, and no part is larger than there is room for.
void expect_whole(const Cut& cut, const transport::Topology& topology, std::size_t elements,
                  const std::string& what) {
  std::size_t input_elements = 0;
  for (std::size_t chunk = 0; chunk < cut.chunks(); ++chunk) {
    std::vector<int> owners(cut.elements(chunk));
    for (int lane = 0; lane < topology.lanes(); ++lane) {
      for (int node = 0; node < topology.nodes(); ++node) {
        const Slice part = cut.part(chunk, lane, node);
        ASSERT_LE(part.size(), cut.most_in_part(node)) << what;
        for (std::size_t i = part.begin; i < part.end; ++i) ++owners[i];
      }
    }
    ASSERT_EQ(std::count(owners.begin(), owners.end(), 1), static_cast<long>(owners.size()))
        << what << ", chunk " << chunk;
    input_elements += owners.size();
  }
  EXPECT_EQ(input_elements, elements) << what;
}

TEST(Cut, GivesEveryElementToOneRank) {
  for (const auto& nodes : kWorlds) {
    const transport::Topology topology(nodes, 0);
    for (const DType type : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{17},
                                      std::size_t{1000}, std::size_t{70'001}}) {
        for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
          const Rank root = kind == OpKind::kReduce ? topology.world_size() - 1 : -1;
          const OpRecord record = record_of(kind, type, count, root);
          const bool blocks = kind == OpKind::kReduceScatter;
          expect_whole(Cut(record, topology), topology,
                       blocks ? count * static_cast<std::size_t>(topology.world_size()) : count,
                       describe(record) + " on " + std::to_string(nodes.size()) + " nodes");
        }
      }
    }
  }
}

// On nodes with a lane for every rank nothing has to go from one rank to another in the end.
TEST(Cut, GivesRanksTheirOwnBlocks) {
  const transport::Topology topology({2, 2, 2}, 0);
  const Cut cut(record_of(OpKind::kReduceScatter, DType::kF32, 33'333), topology);
  for (std::size_t chunk = 0; chunk < cut.chunks(); ++chunk) {
    for (Rank rank = 0; rank < 6; ++rank) {
      const Slice part = cut.part(chunk, rank % 2, rank / 2);
      const Slice result = cut.result(chunk, rank);
      EXPECT_EQ(part.begin, result.begin);
      EXPECT_EQ(part.end, result.end);
    }
  }
}

// Bytes through each node's link, out and in, for a byte of the buffer.
double busiest(const transport::Topology& topology, DType type, int root_node,
               const std::vector<double>& parts) {
  double most = 0;
  std::vector<double> width;
  for (int node = 0; node < topology.nodes(); ++node) {
    const Rank first = topology.first(node);
    width.push_back(static_cast<double>(
        subtrees_of(first, first + topology.local_size(node), topology.world_size()).size() *
        dtype_bytes(topology.nodes() == topology.world_size() ? type : accumulator_of(type)) /
        dtype_bytes(type)));
  }
  for (int node = 0; node < topology.nodes(); ++node) {
    const auto self = static_cast<std::size_t>(node);
    double in = 0;
    for (std::size_t other = 0; other < width.size(); ++other) {
      if (other == self) continue;
      in += width[other] * parts[self];
      if (node == root_node) in += parts[other];
    }
    const double out = width[self] * (1 - parts[self]) + (node == root_node ? 0 : parts[self]);
    most = std::max({most, in, out});
  }
  return most;
}

std::vector<double> parts_of(const Cut& cut, const transport::Topology& topology) {
  std::vector<double> parts(static_cast<std::size_t>(topology.nodes()));
  std::size_t all = 0;
  for (std::size_t chunk = 0; chunk < cut.chunks(); ++chunk) {
    all += cut.elements(chunk);
    for (int lane = 0; lane < topology.lanes(); ++lane) {
      for (int node = 0; node < topology.nodes(); ++node)
        parts[static_cast<std::size_t>(node)] +=
            static_cast<double>(cut.part(chunk, lane, node).size());
    }
  }
  for (double& part : parts) part /= static_cast<double>(all);
  return parts;
}

std::vector<double> with_share(int nodes, int root_node, double share) {
  std::vector<double> parts(static_cast<std::size_t>(nodes), (1 - share) / (nodes - 1));
  parts[static_cast<std::size_t>(root_node)] = share;
  return parts;
}

// Of nodes alike no other share of the root's node is better; of others, neither sending all to the
// root's node nor equal parts are.
TEST(Cut, KeepsTheBusiestLinkOfAReduceLeast) {
  for (const auto& nodes : kWorlds) {
    const transport::Topology topology(nodes, 0);
    const int count = topology.nodes();
    const bool alike =
        std::adjacent_find(nodes.begin(), nodes.end(), std::not_equal_to<>()) == nodes.end();
    for (const DType type : {DType::kF32, DType::kF16, DType::kI64}) {
      for (int root = 0; root < count; ++root) {
        const Cut cut(record_of(OpKind::kReduce, type, 4'000'000, topology.first(root)), topology);
        const double ours = busiest(topology, type, root, parts_of(cut, topology));
        const auto at_share = [&](double share) {
          return busiest(topology, type, root, with_share(count, root, share));
        };
        const std::string what = std::string(name_of(type)) + ", root on node " +
                                 std::to_string(root) + " of " + std::to_string(count) +
                                 ", the first of " + std::to_string(nodes[0]);
        EXPECT_LE(ours, 1.01 * at_share(1)) << what;
        EXPECT_LE(ours, 1.01 * at_share(1.0 / count)) << what;
        for (int share = 0; alike && share <= 100; ++share)
          EXPECT_LE(ours, 1.01 * at_share(share / 100.0)) << what << ", " << share << " %";
      }
    }
  }
}

}  // namespace
}  // namespace ddp::collectives
