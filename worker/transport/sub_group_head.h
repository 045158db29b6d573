#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "worker/transport/arena.h"
#include "worker/transport/segment_layout.h"

namespace ddp::transport {

// A rank's own part of a sub-group's memory: a RegionHead in its arena, whose control part holds
// zero bytes until it is shared.
//
// How it is released: every member reads and writes the heads of all members as long as it has a
// Segment of the sub-group, and each member ends its Segment when it likes. So each head counts the
// members that have left it (RankControl::departed). When a Segment ends, it adds one to the count
// in every member's head (memory order release) as its last access to that head. When the owner has
// left too, it gives its head to Arena::release_later(). Once the count (read with acquire) equals
// the number of members on the node, the memory may be reused. Only then does the owner set the
// head to zero bytes for the next sub-group. The members of that one learn where the head is from
// the collective call that makes the group, which comes later still.
//
// The memory stays until the arena ends if a member died and so cannot leave, or if making the
// sub-group failed, so that nobody knows who has seen the head. The round has failed in both cases.
// A Work, a failure and an abort do not need the head: they lie in the rank's region or in the
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
  // How many members, this rank included, must leave before the memory is reused. Call it once.
  void share(int members) { members_ = members; }

 private:
  SubGroupHead(std::shared_ptr<Arena> arena, std::shared_ptr<std::byte> memory);
  RankControl& control() const;

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<std::byte> memory_;  // Null once moved from.
  int members_ = 0;                    // 0: unknown.
};

}  // namespace ddp::transport
