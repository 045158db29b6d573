#include "worker/collectives/choice.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "worker/transport/segment_layout.h"

namespace ddp::collectives {
namespace {

constexpr std::size_t kLeastDirectBytes = 256;

constexpr Algorithm kNamed[] = {Algorithm::kOneShot, Algorithm::kDirect, Algorithm::kStaged,
                                Algorithm::kParts,   Algorithm::kSwap,   Algorithm::kRing};

bool between_nodes(Algorithm algorithm) {
  return algorithm == Algorithm::kParts || algorithm == Algorithm::kSwap ||
         algorithm == Algorithm::kRing;
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"auto",  "one_shot", "direct", "staged",
                                    "parts", "ring",     "swap"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Algorithm::kSwap) + 1);
  return kNames[static_cast<std::size_t>(algorithm)];
}

void Choice::derive() {
  const Algorithm forced = costs_.forced_in_node;
  one_shot_ = forced == Algorithm::kAuto || forced == Algorithm::kOneShot;
  in_place_ = forced == Algorithm::kAuto || forced == Algorithm::kDirect;
  direct_above_ = transport::kSmallBytes;
  if (forced == Algorithm::kOneShot || !in_place_) return;
  // The size n at which a_direct + b_direct * n falls below a_one_shot + b_one_shot * n.
  const double slower = costs_.direct_ns - costs_.one_shot_ns;
  const double per_byte = costs_.one_shot_ns_per_byte - costs_.direct_ns_per_byte;
  if (per_byte <= 0) return;
  const double even =
      std::clamp(slower / per_byte, 0.0, static_cast<double>(transport::kSmallBytes));
  direct_above_ = std::max(kLeastDirectBytes, static_cast<std::size_t>(even));
}

bool Choice::ring(const OpRecord& record, const transport::Topology& topology) const {
  if (record.kind != OpKind::kAllReduce || topology.nodes() < 2) return false;
  if (topology.nodes() != topology.world_size()) return false;
  // It would store the running sum in f16, which may be infinite where the average is not.
  const bool may_overflow = static_cast<DType>(record.type) == DType::kF16 &&
                            static_cast<ReduceOp::Kind>(record.op) == ReduceOp::kAvg;
  if (may_overflow) return false;
  if (costs_.forced_between != Algorithm::kAuto) return costs_.forced_between == Algorithm::kRing;
  const std::size_t bytes = record.count * dtype_bytes(static_cast<DType>(record.type));
  return topology.nodes() >= costs_.ring_from_nodes && bytes >= costs_.ring_from_bytes;
}

bool Choice::swap(const transport::Topology& topology) const {
  return topology.nodes() == 2 &&
         (costs_.forced_between == Algorithm::kAuto || costs_.forced_between == Algorithm::kSwap);
}

std::string Choice::describe() const {
  const std::string in_node =
      fmt::format("in a node: {}{}{}",
                  one_shot_ ? fmt::format("one_shot up to {} bytes (registered: {}), then ",
                                          transport::kSmallBytes, direct_above_)
                            : "",
                  in_place_ ? "direct if registered, else " : "", name_of(Algorithm::kStaged));
  const std::string between = costs_.forced_between != Algorithm::kAuto
                                  ? fmt::format("between nodes: {}", name_of(costs_.forced_between))
                                  : fmt::format(
                                        "between nodes: parts (two nodes: swap); ring from {} "
                                        "nodes of one rank and {} bytes",
                                        costs_.ring_from_nodes, costs_.ring_from_bytes);
  return fmt::format(
      "{}; {}; costs: one_shot {:.0f} ns + {:.3f} ns a byte, direct {:.0f} ns + {:.3f} ns a byte",
      in_node, between, costs_.one_shot_ns, costs_.one_shot_ns_per_byte, costs_.direct_ns,
      costs_.direct_ns_per_byte);
}

Result<void> force(const std::string& names, CostTable& costs) {
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() || name == name_of(Algorithm::kAuto)) continue;
    const auto found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                    [&](Algorithm each) { return name == name_of(each); });
    if (found == std::end(kNamed)) {
      return make_error(Errc::kInvalidArgument,
                        "DDP_ALGO={}: there is no algorithm '{}'; in a node: auto, one_shot, "
                        "direct, staged; between nodes: parts, swap, ring",
                        names, name);
    }
    Algorithm& forced = between_nodes(*found) ? costs.forced_between : costs.forced_in_node;
    if (forced != Algorithm::kAuto && forced != *found) {
      return make_error(Errc::kInvalidArgument, "DDP_ALGO={}: '{}' and '{}' exclude each other",
                        names, name_of(forced), name);
    }
    forced = *found;
  }
  return {};
}

}  // namespace ddp::collectives
