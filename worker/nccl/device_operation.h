#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/collectives/types.h"
#include "worker/nccl/cuda_api.h"
#include "worker/nccl/transfer.h"

namespace ddp::nccl {

enum class DeviceOpKind {
  kAllReduce,
  kAllReduceCoalesced,
  kBroadcast,
  kReduce,
  kAllGather,
  kAllGatherV,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kBarrier,
  kSend,
  kRecv,
  kBatch,
};

struct DeviceOperation {
  std::uint64_t sequence = 0;  // Operations that this rank has issued on the group before it.
  DeviceOpKind kind = DeviceOpKind::kBarrier;
  Rank root = -1;  // Root, or the other rank of a send or receive.
  Buffer in;
  Buffer out;
  ReduceOp op;
  std::vector<Buffer> parts;        // What a coalesced all_reduce consists of.
  std::vector<Transfer> transfers;  // What gather, scatter, all_to_all, send, recv consist of.
  std::chrono::milliseconds timeout{0};
  TimePoint deadline{};         // Of completion.
  cuda::Event ready = nullptr;  // The caller's stream has produced the input.
  bool captured = false;        // It becomes part of a graph; see NcclWork.
  std::string tag;

  // "all_reduce #17 (bucket 3)", as the messages of host groups have it.
  std::string name() const;
};

const char* name_of(DeviceOpKind kind);

}  // namespace ddp::nccl
