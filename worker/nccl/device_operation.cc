#include "worker/nccl/device_operation.h"

#include <cstddef>
#include <iterator>

#include <fmt/format.h>

namespace ddp::nccl {

std::string DeviceOperation::name() const {
  if (tag.empty()) return fmt::format("{} #{}", name_of(kind), sequence);
  return fmt::format("{} #{} ({})", name_of(kind), sequence, tag);
}

const char* name_of(DeviceOpKind kind) {
  constexpr const char* kNames[] = {"all_reduce",     "all_reduce_coalesced",
                                    "broadcast",      "reduce",
                                    "all_gather",     "all_gatherv",
                                    "reduce_scatter", "gather",
                                    "scatter",        "all_to_all",
                                    "all_to_allv",    "barrier",
                                    "send",           "recv",
                                    "batch"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(DeviceOpKind::kBatch) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace ddp::nccl
