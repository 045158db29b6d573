#include "worker/collectives/operation.h"

#include <iterator>

#include <fmt/format.h>

namespace ddp::collectives {

const char* name_of(OpKind kind) {
  constexpr const char* kNames[] = {"all_reduce",     "broadcast", "reduce",  "all_gather",
                                    "reduce_scatter", "gather",    "scatter", "all_to_all",
                                    "barrier",        "send",      "recv"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(OpKind::kRecv));
  const auto number = static_cast<std::size_t>(kind);  // From 1 on.
  return number - 1 < std::size(kNames) ? kNames[number - 1] : "an unknown operation";
}

std::string describe(const OpRecord& record) {
  const bool reduces = record.kind == OpKind::kAllReduce || record.kind == OpKind::kReduce ||
                       record.kind == OpKind::kReduceScatter;
  if (record.kind == OpKind::kBarrier) return name_of(record.kind);
  std::string text = name_of(record.kind);
  if (reduces) text += fmt::format(" ({})", name_of(static_cast<ReduceOp::Kind>(record.op)));
  if (record.kind == OpKind::kAllToAll && record.layout != 0) {
    text += " of unequal blocks of";
  } else {
    text += fmt::format(" of {}", record.count);
  }
  text += fmt::format(" {}", name_of(static_cast<DType>(record.type)));
  if (record.kind == OpKind::kAllGather && record.layout != 0)
    text += fmt::format(" in unequal blocks (layout {:x})", record.layout);
  if (record.root >= 0) {
    const bool from = record.kind == OpKind::kBroadcast || record.kind == OpKind::kScatter;
    text += fmt::format(" {} rank {}", from ? "from" : "to", record.root);
  }
  return text;
}

}  // namespace ddp::collectives
