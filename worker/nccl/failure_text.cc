#include "worker/nccl/failure_text.h"

#include <fmt/format.h>

#include "common/base/errc.h"

namespace ddp::nccl {
namespace {

Errc code_of(nccl::api::Result result) {
  switch (result) {
    case nccl::api::kRemoteError:
      return Errc::kPeerLost;
    case nccl::api::kInvalidArgument:
    case nccl::api::kInvalidUsage:
      return Errc::kInvalidArgument;
    default:
      return Errc::kIo;
  }
}

}  // namespace

Failure nccl_failure(const NcclLibrary& library, const char* call, nccl::api::Result result,
                     Rank rank) {
  std::string text = fmt::format("rank {}: {}: {} (NCCL error {})", rank, call,
                                 library.nccl().get_error_string(result), result);
  // NCCL documents the argument as unused, and the communicator may be gone.
  const char* last = library.nccl().get_last_error(nullptr);
  if (last != nullptr && *last != '\0') text += fmt::format(": {}", last);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  // A remote error says that another rank is gone, not which.
  return {code_of(result), result == nccl::api::kRemoteError ? -1 : rank, std::move(text)};
}

Failure cuda_failure(const NcclLibrary& library, const char* call, cuda::Error error, Rank rank) {
  return {Errc::kIo, rank,
          fmt::format("rank {}: {}: {} (CUDA error {})", rank, call,
                      library.cuda().get_error_string(error), error)};
}

}  // namespace ddp::nccl
