#include "worker/nccl/device_operation.h"

#include <fmt/format.h>

namespace ddp {

std::string DeviceOperation::name() const {
  if (tag.empty()) return fmt::format("{} #{}", name_of(record.kind), record.sequence);
  return fmt::format("{} #{} ({})", name_of(record.kind), record.sequence, tag);
}

const char* name_of(DeviceOpKind kind) {
  switch (kind) {
    case DeviceOpKind::kAllReduce:
      return "all_reduce";
    case DeviceOpKind::kAllReduceCoalesced:
      return "all_reduce_coalesced";
    case DeviceOpKind::kBroadcast:
      return "broadcast";
    case DeviceOpKind::kReduce:
      return "reduce";
    case DeviceOpKind::kAllGather:
      return "all_gather";
    case DeviceOpKind::kAllGatherV:
      return "all_gatherv";
    case DeviceOpKind::kReduceScatter:
      return "reduce_scatter";
    case DeviceOpKind::kGather:
      return "gather";
    case DeviceOpKind::kScatter:
      return "scatter";
    case DeviceOpKind::kAllToAll:
      return "all_to_all";
    case DeviceOpKind::kAllToAllV:
      return "all_to_allv";
    case DeviceOpKind::kBarrier:
      return "barrier";
    case DeviceOpKind::kSend:
      return "send";
    case DeviceOpKind::kRecv:
      return "recv";
    case DeviceOpKind::kBatch:
      return "batch";
  }
  return "an unknown operation";
}

std::string describe(const DeviceRecord& record) {
  const char* kind = name_of(record.kind);
  const char* type = name_of(static_cast<DType>(record.type));
  const char* op = name_of(static_cast<ReduceOp::Kind>(record.op));
  switch (record.kind) {
    case DeviceOpKind::kAllReduce:
    case DeviceOpKind::kAllReduceCoalesced:
    case DeviceOpKind::kReduceScatter:
      return fmt::format("{} ({}) of {} {}", kind, op, record.count, type);
    case DeviceOpKind::kReduce:
      return fmt::format("{} ({}) of {} {} to rank {}", kind, op, record.count, type, record.root);
    case DeviceOpKind::kBroadcast:
    case DeviceOpKind::kScatter:
    case DeviceOpKind::kRecv:
      return fmt::format("{} of {} {} from rank {}", kind, record.count, type, record.root);
    case DeviceOpKind::kGather:
    case DeviceOpKind::kSend:
      return fmt::format("{} of {} {} to rank {}", kind, record.count, type, record.root);
    case DeviceOpKind::kAllGather:
    case DeviceOpKind::kAllToAll:
      return fmt::format("{} of {} {}", kind, record.count, type);
    case DeviceOpKind::kAllGatherV:
      return fmt::format("{} of {} {} from all ranks", kind, record.count, type);
    case DeviceOpKind::kAllToAllV:
      return fmt::format("{} of {}", kind, type);
    case DeviceOpKind::kBarrier:
    case DeviceOpKind::kBatch:
      return kind;
  }
  return kind;
}

}  // namespace ddp
