#pragma once

#include "common/base/ids.h"
#include "worker/collectives/types.h"

namespace ddp {

namespace cuda {

using Stream = struct OpaqueStream*;  // A cudaStream_t. nullptr: the device's default stream.

}  // namespace cuda

// One direction of traffic with one rank.
struct Transfer {
  enum class Direction { kSend, kRecv };
  Direction direction = Direction::kSend;
  Rank peer = -1;
  Buffer buffer;
};

}  // namespace ddp
