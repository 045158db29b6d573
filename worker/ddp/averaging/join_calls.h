#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct JoinOptions {
  // Gradients are divided by the size of the group, whoever has joined; else by the number of ranks
  // that still have input. Does not concern communication hooks, which divide by themselves.
  bool divide_by_initial_world_size = true;
  // As soon as one rank has joined, the next forward on every other one throws, and so does the
  // joining of that rank.
  bool throw_on_early_termination = false;
  // false: join does nothing, for input that is known to be even.
  bool enable = true;
};

// How ranks with input tell those without what collectives come next. A rank that still trains
// announces each call that issues some, and of which of several models (counted as they were given
// to Join); a rank that has joined announces kJoined again and again and does what the others have
// announced. An announcement is one exchange of eight bytes a rank.
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

  // Tells and waits for what the others say.
  void announce(Call mine, int model = 0);
  // The same in two halves, so that something else can go on meanwhile; std::logic_error for a
  // second one before the first is finished: two models' backwards in one.
  void begin(Call mine, int model = 0);
  void finish();

  // As of the last announcement:
  int live() const;          // Ranks that have not joined.
  Rank first_live() const;   // The lowest of them, -1 if there is none.
  Rank first_ended() const;  // The lowest that ends the training, -1.
  Call call() const;         // What the live ones do; kJoined if there is none.
  int model() const;         // With which model.

  // Nothing is announced any more: a rank has ended the training.
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
