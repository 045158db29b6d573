#include "worker/nccl/device_operation.h"

#include <fmt/format.h>

namespace ddp::nccl {

std::string DeviceOperation::name() const {
  if (tag.empty()) return fmt::format("{} #{}", name_of(kind), sequence);
  return fmt::format("{} #{} ({})", name_of(kind), sequence, tag);
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

}  // namespace ddp::nccl
