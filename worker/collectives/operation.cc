#include "worker/collectives/operation.h"

#include <fmt/format.h>

namespace ddp::collectives {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kGather:
      return "gather";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
  }
  return "an unknown operation";
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
