#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "worker/transport/failure.h"
#include "worker/transport/link.h"
#include "worker/transport/segment.h"
#include "worker/transport/topology.h"

namespace ddp {

// What one attempt to go on came to. kFailed: Transport::fail() was called.
enum class Progress { kMoved, kBlocked, kDone, kFailed };

// Whether this process may run on at least as many CPUs as there are ranks next to it.
bool spinning_pays(int local_ranks);

// How one rank reaches the others: the memory of its node and, if it has a lane, the links to its
// neighbours in it. Collectives are written as a step() that moves what can be moved without
// waiting; drive() repeats it and waits in between, so that every wait knows the deadline and the
// abort word.
//
// One thread at a time ("the executing thread"), except where a function says any thread.
class Transport {
 public:
  // spin: whether waiting may begin with a busy loop, which pays only if every local rank has a CPU
  // of its own.
  Transport(Topology topology, std::shared_ptr<Segment> segment, std::unique_ptr<Link> previous,
            std::unique_ptr<Link> next, bool spin);

  const Topology& topology() const { return topology_; }
  Segment& segment() { return *segment_; }
  // Null where the chain of nodes ends or this rank has no lane.
  Link* previous() { return previous_.get(); }
  Link* next() { return next_.get(); }

  // Whether the local rank has come to `value`.
  bool reached(int local, Flag flag, std::uint32_t value) const {
    return static_cast<std::int32_t>(segment_->flag(local, flag) - value) >= 0;
  }
  void publish(Flag flag, std::uint32_t value) {
    segment_->publish(topology_.local_rank(), flag, value);
  }

  // Repeats step() (callable, gives Progress) until it is done. Fails with the failure that step()
  // recorded, with the cause if the group was aborted, or with kTimeout and an empty text after the
  // deadline.
  template <typename Step>
  Outcome drive(TimePoint deadline, Step&& step);
  // For step(): records why it cannot go on. Gives kFailed.
  Progress fail(Failure failure) {
    step_failure_ = std::move(failure);
    return Progress::kFailed;
  }

  // The cause if the group was aborted, here or by a neighbour that said so. Never waits.
  Outcome check();
  // Marks the node's memory aborted. The first cause counts. Any thread.
  void raise_abort(const Failure& cause) { segment_->raise_abort(cause); }
  // The cause that counts once the memory is marked. Any thread.
  Outcome abort_cause() const {
    if (!segment_->aborted()) return {};
    return segment_->abort_cause();
  }
  // Ends the group on this rank: marks the memory, tells the neighbours and closes the links. Gives
  // the first cause.
  Failure shut_down(const Failure& cause);

 private:
  // Stages of waiting: busy loop, giving up the CPU, sleeping.
  class Idle {
   public:
    Idle(Transport& transport, TimePoint deadline) : transport_(transport), deadline_(deadline) {}
    ~Idle() { reset(); }
    void reset();
    // After a step that could not move. Nothing: step again.
    Outcome wait();

   private:
    enum class Stage { kSpin, kYield, kArmed };
    Outcome yield();
    void arm();
    Outcome sleep();

    Transport& transport_;
    TimePoint deadline_;
    TimePoint since_{};
    Stage stage_ = Stage::kSpin;
    int spins_ = 0;
    std::uint32_t bell_ = 0;
  };

  void clear_wants() {
    if (previous_) previous_->clear_wants();
    if (next_) next_->clear_wants();
  }

  Topology topology_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Link> previous_;
  std::unique_ptr<Link> next_;
  bool spin_;
  Outcome step_failure_;
};

template <typename Step>
Outcome Transport::drive(TimePoint deadline, Step&& step) {
  Idle idle(*this, deadline);
  for (;;) {
    clear_wants();
    switch (step()) {
      case Progress::kDone:
        return {};
      case Progress::kMoved:
        idle.reset();
        break;
      case Progress::kBlocked:
        if (auto failure = idle.wait()) return failure;
        break;
      case Progress::kFailed:
        return std::exchange(step_failure_, std::nullopt);
    }
  }
}

}  // namespace ddp
