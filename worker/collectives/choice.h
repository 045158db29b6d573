#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "worker/collectives/operation.h"
#include "worker/transport/topology.h"

namespace ddp::collectives {

// The algorithms of an operation.
enum class Algorithm : std::uint8_t {
  kAuto,
  kOneShot,  // Small: every rank gets all inputs and computes the result.
  kDirect,   // One node, registered: owners of slices read and write everybody's memory.
  kStaged,   // One node: through staging slots.
  kParts,    // Between nodes: parts of slices straight to their owners.
  kRing,     // Between nodes of one rank: neighbours only.
  kSwap,     // Between two nodes: each sends all its partial sums, and both combine them.
};

// The costs that decide between them: a + b * bytes for each algorithm, in nanoseconds. They give
// the sizes at which one algorithm overtakes another. Rank 0 measures them (runtime/calibration.h)
// and tells all ranks, because all must choose the same. The choice changes no bit of a result:
// kRing, which has its own order of sums, is never chosen by cost, but by the number of nodes or by
// force.
struct CostTable {
  double one_shot_ns = 400;
  double one_shot_ns_per_byte = 0.15;
  double direct_ns = 500;  // Includes a second meeting of the ranks.
  double direct_ns_per_byte = 0.05;
  std::int32_t ring_from_nodes = 17;        // And at least ring_from_bytes.
  std::uint64_t ring_from_bytes = 1 << 20;  // Below this, latency dominates.
  std::int32_t direct_nodes = 8;  // Up to here small operations talk to all nodes directly.
  Algorithm forced_in_node = Algorithm::kAuto;
  Algorithm forced_between = Algorithm::kAuto;
};

class Choice {
 public:
  Choice() { derive(); }
  explicit Choice(const CostTable& costs) : costs_(costs) { derive(); }

  const CostTable& costs() const { return costs_; }

  // Small operations on registered buffers larger than this, in bytes, are reduced in place.
  std::size_t direct_above() const { return direct_above_; }
  // Whether small operations may be done in one shot, and registered buffers in place.
  bool one_shot() const { return one_shot_; }
  bool in_place() const { return in_place_; }
  // Never for averages of f16, even if it is forced.
  bool ring(const OpRecord& record, const transport::Topology& topology) const;
  // Whether two nodes swap all their partial sums instead of parts.
  bool swap(const transport::Topology& topology) const;
  bool all_nodes_at_once(int nodes) const { return nodes <= costs_.direct_nodes; }

  // "in a node: one_shot up to 4096 bytes (registered: up to 1024), then direct if registered, else
  // staged; ..."
  std::string describe() const;

 private:
  void derive();

  CostTable costs_;
  std::size_t direct_above_ = 0;
  bool one_shot_ = true;
  bool in_place_ = true;
};

const char* name_of(Algorithm algorithm);
// Applies DDP_ALGO: names separated by commas, at most one for inside a node and one for between
// nodes, e.g. "staged,ring". kInvalidArgument: the message says what is wrong and lists the names.
Result<void> force(const std::string& names, CostTable& costs);

}  // namespace ddp::collectives
