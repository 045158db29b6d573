#include "worker/nccl/record_check.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "common/base/errc.h"

namespace ddp {

Outcome RecordCheck::compare(const DeviceOperation& operation) {
  DeviceRecord own = operation.record;
  std::vector<DeviceRecord> all(static_cast<std::size_t>(host_->size()));
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(operation.deadline - Clock::now());
  OpOptions options;
  options.timeout = std::max(left, std::chrono::milliseconds(1));
  options.tag = "record of " + operation.name();
  try {
    host_
        ->all_gather({&own, sizeof(own), DType::kU8},
                     {all.data(), all.size() * sizeof(own), DType::kU8}, options)
        ->wait();
  } catch (const CollectiveError& error) {
    return Failure{error.code, error.suspect_rank, error.what()};
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].matches(all.front())) continue;
    wait_for_all(options);
    return Failure{Errc::kMismatch, static_cast<Rank>(rank),
                   fmt::format("rank 0 calls {}, but rank {} calls {}", describe(all.front()), rank,
                               describe(all[rank]))};
  }
  return std::nullopt;
}

// A rank that fails aborts the group. Wait, so that no rank that still gathers gets that abort.
void RecordCheck::wait_for_all(const OpOptions& options) {
  try {
    host_->barrier(options)->wait();
  } catch (const CollectiveError&) {
    // This rank already knows what is wrong.
  }
}

}  // namespace ddp
