#include "worker/collectives/entry.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"
#include "common/base/errc.h"

namespace ddp::collectives {

static_assert(sizeof(OpRecord) + sizeof(Offer) <= transport::kRecordBytes);

Entry::Entry(transport::Transport& transport, const OpRecord& record, const Offer& offer,
             std::uint32_t number, const void* payload, std::size_t payload_bytes)
    : transport_(transport),
      record_(record),
      number_(number),
      local_(transport.topology().local_rank()),
      size_(transport.topology().local_size()) {
  DDP_CHECK(payload_bytes <= transport::kSmallBytes, "payload of {} bytes", payload_bytes);
  transport::OperationSlot& slot = transport_.segment().operation(local_, number_);
  std::memcpy(slot.record, &record_, sizeof(record_));
  std::memcpy(slot.record + sizeof(record_), &offer, sizeof(offer));
  if (payload_bytes > 0) std::memcpy(slot.payload, payload, payload_bytes);
  transport_.publish(transport::Flag::kEntry, number_ + 1);
  if (grouped()) seen_ = local_ / kGroup * kGroup;
}

transport::Advance Entry::step() {
  StepResult result;
  if (!grouped()) {
    if (!result.add(look(seen_, 1, size_, transport::Flag::kEntry))) return result.get(false);
    return result.get(seen_ >= size_);
  }
  const int group_end = std::min(local_ / kGroup * kGroup + kGroup, size_);
  if (local_ % kGroup == 0) {
    if (!result.add(look(seen_, 1, group_end, transport::Flag::kEntry))) return result.get(false);
    if (seen_ >= group_end && !told_) {
      told_ = true;
      transport_.publish(transport::Flag::kGroup, number_ + 1);
    }
  }
  if (!result.add(look(heads_seen_, kGroup, size_, transport::Flag::kGroup)))
    return result.get(false);
  return result.get(heads_seen_ >= size_);
}

transport::Advance Entry::look(int& seen, int stride, int end, transport::Flag flag) {
  const int before = seen;
  while (seen < end && transport_.reached(seen, flag, number_ + 1)) {
    OpRecord theirs;
    std::memcpy(&theirs, transport_.segment().operation(seen, number_).record, sizeof(theirs));
    if (!(theirs == record_)) {
      return report_mismatch(transport_, record_, theirs, transport_.topology().global(seen));
    }
    seen += stride;
  }
  // A rank leaves only when it is done, so one that has not entered by then never will.
  if (seen < end && transport_.segment().has_left(seen) &&
      !transport_.reached(seen, flag, number_ + 1)) {
    const Rank rank = transport_.topology().global(seen);
    return transport_.fail(
        {Errc::kPeerLost, rank,
         fmt::format("rank {} has left the group: it ended, or destroyed its group", rank)});
  }
  return seen > before ? transport::Advance::kMoved : transport::Advance::kBlocked;
}

Offer Entry::offer(int local) const {
  Offer offer;
  std::memcpy(&offer, transport_.segment().operation(local, number_).record + sizeof(OpRecord),
              sizeof(offer));
  return offer;
}

void Entry::note_arrivals(std::vector<Rank>& arrived, std::vector<Rank>& missing) const {
  for (int local = 0; local < size_; ++local) {
    const bool there = transport_.reached(local, transport::Flag::kEntry, number_ + 1);
    (there ? arrived : missing).push_back(transport_.topology().global(local));
  }
}

transport::Advance report_mismatch(transport::Transport& transport, const OpRecord& ours,
                                   const OpRecord& theirs, Rank rank) {
  const Rank self = transport.topology().rank();
  std::string first = fmt::format("rank {} calls {}", self, describe(ours));
  std::string second = fmt::format("rank {} calls {}", rank, describe(theirs));
  if (theirs.sequence != ours.sequence) {
    first += fmt::format(" as its operation #{}", ours.sequence);
    second += fmt::format(" as its operation #{}", theirs.sequence);
  }
  if (rank < self) std::swap(first, second);
  return transport.fail(
      {Errc::kMismatch, -1,
       fmt::format("the ranks disagree: {}, {}; all ranks must issue the same operations in the "
                   "same order",
                   first, second)});
}

std::string list_ranks(const std::vector<Rank>& ranks) {
  if (ranks.empty()) return "rank -";
  return fmt::format("rank {}", fmt::join(ranks, ", "));
}

}  // namespace ddp::collectives
