#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker/transport/arena.h"
#include "worker/transport/failure.h"
#include "worker/transport/idle.h"
#include "worker/transport/link.h"
#include "worker/transport/segment.h"
#include "worker/transport/topology.h"
#include "worker/transport/watch.h"

namespace ddp::transport {

// The result of one step. kFailed: Transport::fail() was called.
enum class Advance { kMoved, kBlocked, kDone, kFailed };

// Whether this process may use at least `local_ranks` CPUs, so that a busy loop takes none away.
bool spinning_pays(int local_ranks);

// How one rank reaches the others: the memory of its node and, if it has a lane, the links to the
// lane's ranks on the other nodes. A collective is written as a step() that moves what it can
// without waiting. drive() repeats it and waits in between, so every wait obeys the deadline and
// the abort word.
//
// One thread at a time ("the executing thread"), except where a function says any thread.
class Transport {
 public:
  // links: an empty list means that all are null. spin: whether a wait may begin with a busy loop,
  // which pays only if every local rank has a CPU of its own.
  Transport(Topology topology, std::shared_ptr<Segment> segment, std::shared_ptr<Arena> arena,
            LaneLinks links, bool spin);

  const Topology& topology() const { return topology_; }
  Segment& segment() { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }
  bool spins() const { return spin_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // Makes the links of this rank's lane that the round did not begin with, unless they are there.
  // Collective. Fails with the cause if the round is aborted meanwhile; then call it no more.
  Outcome make_all_links(TimePoint deadline);
  // The link to this rank's lane on a node; null if there is none, or none yet.
  Link* link(int node) {
    return node >= 0 && node < topology_.nodes() ? links_[static_cast<std::size_t>(node)].get()
                                                 : nullptr;
  }
  Link* previous() { return link(topology_.node() - 1); }
  Link* next() { return link(topology_.node() + 1); }
  bool has_links() const { return topology_.nodes() > 1 && topology_.has_lane(); }

  // Whether the local rank's flag has reached `value`.
  bool reached(int local, Flag flag, std::uint32_t value) const {
    return static_cast<std::int32_t>(segment_->flag(local, flag) - value) >= 0;
  }
  void publish(Flag flag, std::uint32_t value) {
    segment_->publish(topology_.local_rank(), flag, value);
  }

  // Repeats step(), which returns an Advance, until it is done. Fails with the failure that step()
  // recorded, with the cause if the group was aborted, or with kTimeout and an empty text after the
  // deadline.
  //
  // A step that writes to others' memory is not run after an abort. A step that writes only to this
  // rank's own memory is run once more: an operation that is complete must not fail because a rank
  // that has finished it dies or aborts the next one.
  enum class Touches { kOwnMemory, kOthersMemory };
  template <typename Step>
  Outcome drive(TimePoint deadline, Step&& step, Touches touches = Touches::kOthersMemory);
  // For step(): records why it cannot go on. Returns kFailed.
  Advance fail(Failure failure) {
    step_failure_ = std::move(failure);
    return Advance::kFailed;
  }

  // Starts to monitor the ranks of the world, and shows them that this rank is present. Call it
  // once, for the group of the world; sub-groups share its watch. The watch ends with the last of
  // them.
  void start_watch(const WatchOptions& options);
  void share_watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }
  const std::shared_ptr<Watch>& watch() const { return watch_; }

  // The cause if the round was aborted. Never waits. Any thread.
  Outcome check() const {
    if (!segment_->aborted()) return {};
    return segment_->abort_cause();
  }
  // Marks the node's memory aborted and tells the other nodes. The first cause counts. Any thread.
  void raise_abort(const Failure& cause);
  // Ends the group on this rank: does what raise_abort() does and closes the links. Returns the
  // first cause.
  Failure shut_down(const Failure& cause);

 private:
  void adopt_links();
  // After a step that was blocked. Fails only at the deadline; otherwise step again.
  Outcome wait(Idle& idle, TimePoint deadline);
  Outcome sleep(Idle& idle, TimePoint deadline);

  void clear_wants() {
    for (const auto& link : links_) {
      if (link) link->clear_wants();
    }
  }

  Topology topology_;
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Link>> links_;  // By node.
  decltype(LaneLinks::make_rest) make_rest_;
  std::vector<pollfd> entries_;  // Room for waiting on all of them.
  bool spin_;
  Outcome step_failure_;
  std::shared_ptr<Watch> watch_;  // Null until there is one.
};

template <typename Step>
Outcome Transport::drive(TimePoint deadline, Step&& step, Touches touches) {
  Idle idle(segment_->doorbell(topology_.local_rank()), spin_);
  for (;;) {
    clear_wants();
    // Read before the step, so a step that is still blocked has seen all that came before the
    // abort.
    const bool aborted = segment_->aborted();
    // Before every such step: a rank that was stopped must not go on to write to the others.
    if (aborted && touches == Touches::kOthersMemory) return segment_->abort_cause();
    switch (step()) {
      case Advance::kDone:
        return {};
      case Advance::kMoved:
        idle.reset();
        break;
      case Advance::kBlocked:
        if (aborted) return segment_->abort_cause();
        if (auto failure = wait(idle, deadline)) return failure;
        break;
      case Advance::kFailed:
        return std::exchange(step_failure_, std::nullopt);
    }
  }
}

}  // namespace ddp::transport
