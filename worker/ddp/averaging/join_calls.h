#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "worker/ddp/averaging/join.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Ranks with input use it to tell those without which collectives come next. A rank that still
// trains announces each call that issues collectives, and its model (by its position in Join's
// list). A rank that has joined announces kJoined repeatedly and takes part in what the others
// announce. An announcement is one exchange of eight bytes per rank.
//
// Used by one thread at a time. Throws CollectiveError, or std::logic_error if ranks with input
// announce different things, after aborting the group.
class JoinCalls {
 public:
  enum class Call : std::int64_t {
    kJoined,     // No input left.
    kForward,    // A forward begins; nothing follows. (Only so that it can throw.)
    kBuffers,    // Buffers are broadcast from first_live().
    kBackward,   // Buckets are reduced.
    kStep,       // Each rank updates its part (ZeroRedundancyOptimizer).
    kTerminate,  // No input left, and the others shall throw.
    kCalls,      // How many there are.
  };

  JoinCalls(std::shared_ptr<ProcessGroup> group, JoinOptions options);
  JoinCalls(const JoinCalls&) = delete;
  JoinCalls& operator=(const JoinCalls&) = delete;
  // Waits for an announcement that has begun, which writes into this object. If the others may not
  // make theirs, abort the group first.
  ~JoinCalls();

  // Announces a call and waits for the others' announcements.
  void announce(Call mine, int model = 0);
  // The same in two halves, so that other work can go on meanwhile. Throws std::logic_error if a
  // second one begins before the first is finished, because two models' backwards overlap then.
  void begin(Call mine, int model = 0);
  void finish();

  // As of the last announcement:
  int live() const;          // Ranks that have not joined.
  Rank first_live() const;   // The lowest of them, -1 if there is none.
  Rank first_ended() const;  // The lowest that ends the training, -1.
  Call call() const;         // What the live ones do; kJoined if there is none.
  int model() const;         // With which model.

  // A rank has ended the training, so nothing is announced any more.
  void end() { is_over_ = true; }
  bool is_over() const { return is_over_; }

  const JoinOptions& options() const { return options_; }

 private:
  std::shared_ptr<ProcessGroup> group_;
  JoinOptions options_;
  std::vector<std::int64_t> calls_;  // By rank: the call, and the model times kCalls.
  WorkPtr work_;
  bool is_over_ = false;
};

}  // namespace ddp
