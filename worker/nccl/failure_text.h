#pragma once

#include <string>

#include "worker/nccl/cuda_api.h"
#include "worker/nccl/library.h"
#include "worker/nccl/nccl_api.h"
#include "worker/transport/failure.h"

namespace ddp::nccl {

// Describes a failed call as a Failure of `rank`. Codes:
//   kPeerLost         NCCL: another rank or the network between failed
//   kInvalidArgument  NCCL: a wrong argument or a wrong use
//   kIo               the device, the system or NCCL itself, on this rank
// The text includes NCCL's last error message.
Failure nccl_failure(const NcclLibrary& library, const char* call, nccl::api::Result result,
                     Rank rank);
Failure cuda_failure(const NcclLibrary& library, const char* call, cuda::Error error, Rank rank);

}  // namespace ddp::nccl
