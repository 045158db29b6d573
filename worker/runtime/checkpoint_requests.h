#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Requests to a running training: a checkpoint at the next step boundary (SIGUSR1 to this process,
// or to ddp-run, whose agent passes it on), or a checkpoint and then stop (SIGTERM). For the
// training thread. One per process; ranks that are threads of one process share the requests.
//
// SIGUSR1 is caught as long as the object lives. SIGTERM is caught only while a Listening lives,
// that is, while steps run whose end checks for it; otherwise it keeps its previous disposition. A
// second SIGTERM ends the process at once, unless it is a copy of the first: SLURM sends it to
// every process of a step, and the agent passes on its own. So one SIGTERM from a different sender
// than the first counts as a copy.
class CheckpointRequests {
 public:
  // channel outlives the object. catches_usr1: false if the program has another use for SIGUSR1.
  explicit CheckpointRequests(ControlChannel& channel, bool catches_usr1 = true);
  ~CheckpointRequests();
  CheckpointRequests(const CheckpointRequests&) = delete;
  CheckpointRequests& operator=(const CheckpointRequests&) = delete;

  // If a SIGTERM has arrived but take_stop() has not taken it when the last of these is destroyed
  // (after an exception, for example), it is sent to this process again, which ends it.
  class Listening {
   public:
    explicit Listening(CheckpointRequests& requests);
    ~Listening();
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;
  };

  enum class Asked { kNothing, kCheckpoint, kCheckpointAndStop };
  // Call it after each step; collective. Returns the most that any rank was asked for since. The
  // ranks exchange requests four times a second, not at every step. So most steps cost nothing, and
  // a request is seen within a quarter of a second.
  Asked after_step(ProcessGroup& group, std::int64_t step);

  // What this process was asked for since the last call. Instead of after_step(), for programs
  // whose ranks agree on it in their own way.
  Asked own();

  // Whether this process must stop. Clears the request, so the caller must then stop.
  bool take_stop();

 private:
  std::int64_t requests() const;
  std::int64_t interval(std::int64_t step);

  ControlChannel& channel_;
  const bool catches_usr1_;
  std::int64_t answered_ = 0;  // How many of requests() have been answered.
  std::int64_t next_ = 0;      // The step after which the next exchange takes place.
  std::int64_t interval_ = 1;  // Steps between exchanges, chosen by rank 0.
  std::int64_t last_step_ = -1;
  TimePoint last_time_;
};

}  // namespace ddp
