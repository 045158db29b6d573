#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "worker/transport/arena.h"
#include "worker/transport/segment_layout.h"

namespace ddp {

// A rank's own part of a sub-group's memory: a RegionHead in its arena, whose control part holds
// zero bytes until it is shared.
//
// How it is given back. Every member reads and writes the heads of all members as long as it has a
// Segment of the sub-group, and members end theirs at any time, each for itself. So a head counts
// those that have left it (RankControl::departed): a Segment that ends adds one to the count in
// every member's head, after everything else that the member did there and as its last access to
// that head, as a release. The owner, when it has left too, gives its head to
// Arena::release_later() and uses the memory again once the count, read as an acquire, is the
// number of members on the node. Only then does it set the head to zero bytes for the next
// sub-group, whose members learn where the head is from the collective call that makes the group,
// which is after that.
//
// Memory stays until the arena ends where members do not leave: one that died, and where making the
// sub-group failed, so that nobody knows who has seen the head. The round has failed in both cases.
// A Work, a failure and an abort do not need the head: they are in the rank's region, or of the
// process.
class SubGroupHead {
 public:
  // Nothing if the arena has no room.
  static std::optional<SubGroupHead> allocate(std::shared_ptr<Arena> arena);
  SubGroupHead(SubGroupHead&&) noexcept = default;
  SubGroupHead(const SubGroupHead&) = delete;
  SubGroupHead& operator=(const SubGroupHead&) = delete;
  ~SubGroupHead();

  // In this rank's region.
  std::uint64_t offset() const;
  // How many, this rank included, leave before the memory is used again. Once.
  void share(int members) { members_ = members; }

 private:
  SubGroupHead(std::shared_ptr<Arena> arena, std::shared_ptr<std::byte> memory);
  RankControl& control() const;

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<std::byte> memory_;  // Null once moved from.
  int members_ = 0;                    // 0: unknown.
};

}  // namespace ddp
