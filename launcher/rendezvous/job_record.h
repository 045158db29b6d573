#pragma once

#include <cstdint>
#include <string>

#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::rendezvous {

// What of a job outlives its coordinator and all of its agents, where the shell keeps it somewhere:
// the next coordinator starts from it.
struct JobRecord {
  std::string job_id;
  Round next_round = 0;         // The first number that no round has had.
  int restarts = 0;             // Charged so far.
  std::int64_t best_step = -1;  // The largest one that any worker has reported.
  int no_progress = 0;          // Restarts since then.
  bool finished = false;
  wire::Finish result;  // Where it is finished.
};

}  // namespace ddp::rendezvous
