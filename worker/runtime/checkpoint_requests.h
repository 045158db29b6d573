#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// What people and schedulers ask of a training that runs: a checkpoint at the next step boundary
// (SIGUSR1 to this process, or to ddp-run, whose agent passes it on), or that and then to stop
// (SIGTERM). The training thread. One for a process; ranks that are threads of one share what
// comes.
//
// SIGUSR1 is caught as long as the object lives. SIGTERM is caught only while a Listening lives,
// that is while there are steps at whose end somebody looks; otherwise it does what it did before.
// A second SIGTERM ends it at once, unless it is the first one's copy: SLURM sends it to every
// process of a step, and the agent passes on its own. So one from another process than the first
// counts as a copy, once.
class CheckpointRequests {
 public:
  // channel outlives the object.
  explicit CheckpointRequests(ControlChannel& channel);
  ~CheckpointRequests();
  CheckpointRequests(const CheckpointRequests&) = delete;
  CheckpointRequests& operator=(const CheckpointRequests&) = delete;

  // If a SIGTERM has come and nobody has taken it by take_stop() when this ends (after an
  // exception, say), it is sent to this process again, and ends it.
  class Listening {
   public:
    explicit Listening(CheckpointRequests& requests);
    ~Listening();
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

   private:
    CheckpointRequests& requests_;
  };

  enum class Asked { kNothing, kCheckpoint, kCheckpointAndStop };
  // After each step, collective: the most that any rank has been asked for since. The ranks talk
  // to each other four times a second and not at every step, so a step costs nothing, and a request
  // is heard within a quarter of a second.
  Asked after_step(ProcessGroup& group, std::int64_t step);

  // Whether this process is to stop. The caller does: what has come is forgotten.
  bool take_stop();

 private:
  std::int64_t requests() const;
  std::int64_t interval(std::int64_t step);

  ControlChannel& channel_;
  std::int64_t answered_ = 0;  // Of requests().
  std::int64_t next_ = 0;      // The step after which the ranks talk next.
  std::int64_t interval_ = 1;  // Steps from one talk to the next, chosen by rank 0.
  std::int64_t last_step_ = -1;
  TimePoint last_time_;
};

}  // namespace ddp
