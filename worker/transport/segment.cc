#include "worker/transport/segment.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "worker/transport/futex.h"

namespace ddp::transport {
Segment::Segment(std::shared_ptr<SharedMapping> mapping, std::vector<Member> members)
    : mapping_(std::move(mapping)), members_(std::move(members)) {
  for (const Member& member : members_) populate(member.head, offsetof(RegionHead, staging));
}

void Segment::populate_staging() {
  for (const Member& member : members_) {
    populate(member.head + offsetof(RegionHead, staging), sizeof(RankStaging));
  }
}

std::shared_ptr<Segment> Segment::of_ranks(std::shared_ptr<SharedMapping> mapping,
                                           std::vector<int> locals) {
  std::vector<Member> members;
  for (const int local : locals) members.push_back({local, mapping->region(local)});
  return std::shared_ptr<Segment>(new Segment(std::move(mapping), std::move(members)));
}

std::shared_ptr<Segment> Segment::of_heads(std::shared_ptr<SharedMapping> mapping,
                                           const std::vector<int>& regions,
                                           const std::vector<std::uint64_t>& heads,
                                           SubGroupHead own_head) {
  DDP_CHECK(regions.size() == heads.size(), "{} members, {} heads", regions.size(), heads.size());
  std::vector<Member> members;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    members.push_back({regions[i], mapping->region(regions[i]) + heads[i]});
  }
  std::shared_ptr<Segment> segment(new Segment(std::move(mapping), std::move(members)));
  segment->own_.emplace(std::move(own_head));
  segment->own_->share(segment->local_size());
  return segment;
}

Segment::~Segment() {
  if (!own_) return;
  for (const Member& member : members_) {
    // From here on the member may reuse the memory.
    head_of(member.head).control.departed.value.fetch_add(1, std::memory_order_acq_rel);
  }
}

void Segment::leave(int local) {
  if (own_) publish(local, Flag::kLeft, 1);
}

void Segment::ring(int local) const {
  Doorbell& door = doorbell(local);
  door.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(door.bell);
}

void Segment::publish(int local, Flag flag, std::uint32_t value) {
  line(local, flag).store(value, std::memory_order_seq_cst);
  for (int peer = 0; peer < local_size(); ++peer) {
    if (peer != local && doorbell(peer).sleepers.load(std::memory_order_seq_cst) != 0) ring(peer);
  }
}

void Segment::raise_abort(const Failure& cause) {
  wire::ShmHeader& shared = header();
  std::uint32_t unclaimed = 0;
  if (shared.abort_claim.compare_exchange_strong(unclaimed, 1)) {
    shared.abort_rank = cause.suspect;
    const std::size_t length = std::min(cause.text.size(), sizeof(shared.abort_reason) - 1);
    std::memcpy(shared.abort_reason, cause.text.data(), length);
    shared.abort_reason[length] = '\0';
    const bool ours = cause.code.category() == make_error_code(Errc::kAborted).category();
    shared.abort_code = ours ? cause.code.value() : 0;
  } else {
    // Another rank is writing its cause. It may die before it has finished; the others must not
    // wait for ever.
    const TimePoint limit = Clock::now() + Duration(100);
    while (!aborted() && Clock::now() < limit) std::this_thread::yield();
  }
  std::uint32_t alive = 0;
  shared.abort.compare_exchange_strong(alive, 1);
  futex_wake_all(shared.abort);
  // Every rank of the node, whatever group it is in.
  for (int region = 0; region < mapping_->local_size(); ++region) {
    Doorbell& door = head_of(mapping_->region(region)).control.doorbell;
    door.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(door.bell);
  }
}

Failure Segment::abort_cause() const {
  const wire::ShmHeader& shared = header();
  Failure cause;
  cause.told = true;
  cause.code = shared.abort_code == 0 ? make_error_code(Errc::kAborted)
                                      : make_error_code(static_cast<Errc>(shared.abort_code));
  cause.suspect = shared.abort_rank;
  cause.text.assign(shared.abort_reason,
                    ::strnlen(shared.abort_reason, sizeof(shared.abort_reason)));
  if (cause.text.empty()) cause.text = "the round was aborted";
  return cause;
}

}  // namespace ddp::transport
