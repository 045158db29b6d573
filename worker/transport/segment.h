#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/trace_ring.h"
#include "worker/transport/failure.h"
#include "worker/transport/segment_layout.h"
#include "worker/transport/shared_mapping.h"
#include "worker/transport/sub_group_head.h"

namespace ddp::transport {

// The part of a node's memory that one group uses: flags, operation records and staging slots of
// its members, numbered 0 .. local_size() - 1, and the abort word, which all groups of a round
// share.
//
// Thread safe. Flags and records are backed and mapped when the object is made.
class Segment {
 public:
  // Of some of the mapping's ranks, in the regions that the agent laid out for them.
  static std::shared_ptr<Segment> of_ranks(std::shared_ptr<SharedMapping> mapping,
                                           std::vector<int> locals);
  // A group with heads of its own: member i lives in the mapping's region regions[i], where
  // heads[i] is the offset of its SubGroupHead; `own` is this rank's head. The destructor tells the
  // members that this rank no longer reads their heads.
  static std::shared_ptr<Segment> of_heads(std::shared_ptr<SharedMapping> mapping,
                                           const std::vector<int>& regions,
                                           const std::vector<std::uint64_t>& heads,
                                           SubGroupHead own);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int local_size() const { return static_cast<int>(members_.size()); }
  const std::shared_ptr<SharedMapping>& mapping() const { return mapping_; }
  // Which region of the mapping belongs to a member.
  int region_of(int local) const { return members_[index(local)].region; }

  std::uint32_t flag(int local, Flag flag) const {
    return line(local, flag).load(std::memory_order_seq_cst);  // See Doorbell.
  }
  // Sets the flag and wakes sleepers. Whoever sees the value also sees everything that this thread
  // wrote before.
  void publish(int local, Flag flag, std::uint32_t value);

  // Shows that this rank has left the group in order and will not enter another operation. Does
  // nothing in memory that a later group of the same ranks uses. `local`: this rank.
  void leave(int local);
  bool has_left(int local) const { return own_ && flag(local, Flag::kLeft) != 0; }

  // Backs and maps the staging slots of all members. Call it before their first use.
  void populate_staging();

  Doorbell& doorbell(int local) const {
    return head_of(mapping_->region(region_of(local))).control.doorbell;
  }
  PairTable& pairs(int local) const { return head(local).control.pairs; }
  // Wakes whoever sleeps at the member's doorbell.
  void ring(int local) const;
  OperationSlot& operation(int local, std::uint32_t sequence) const {
    return head(local).control.operations[sequence % 2];
  }
  std::byte* input(int local, std::size_t chunk) const {
    return head(local).staging.input[chunk % kSlots];
  }
  std::byte* result(int local, std::size_t chunk) const {
    return head(local).staging.result[chunk % kSlots];
  }
  LifeLine& lifeline(int local) const {
    return head_of(mapping_->region(region_of(local))).control.lifeline;
  }
  // Of the member's region: all groups of a rank share its recorder.
  std::byte* flight(int local) const { return head_of(mapping_->region(region_of(local))).flight; }
  // Likewise.
  wire::TraceRing& trace(int local) const {
    return *wire::trace_ring_of(mapping_->region(region_of(local)));
  }

  // Ends the round for every local rank; the first cause counts. Wakes all.
  void raise_abort(const Failure& cause);
  bool aborted() const { return header().abort.load(std::memory_order_acquire) != 0; }
  // A futex: 0 until the abort is raised, which wakes all its sleepers.
  std::atomic<std::uint32_t>& abort_word() const { return header().abort; }
  // The cause. Call it only when aborted().
  Failure abort_cause() const;

 private:
  struct Member {
    int region = 0;             // In the mapping.
    std::byte* head = nullptr;  // Of this group.
  };
  Segment(std::shared_ptr<SharedMapping> mapping, std::vector<Member> members);

  static RegionHead& head_of(std::byte* region) { return *reinterpret_cast<RegionHead*>(region); }
  RegionHead& head(int local) const { return head_of(members_[index(local)].head); }
  wire::ShmHeader& header() const { return mapping_->header(); }
  std::atomic<std::uint32_t>& line(int local, Flag flag) const {
    return head(local).control.flags[static_cast<unsigned>(flag)].value;
  }
  static std::size_t index(int local) { return static_cast<std::size_t>(local); }

  std::shared_ptr<SharedMapping> mapping_;
  std::vector<Member> members_;
  std::optional<SubGroupHead> own_;  // Of a sub-group.
};

}  // namespace ddp::transport
