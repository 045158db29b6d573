#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Whether SLURM should start a stopped job again. Pure.
namespace ddp::slurm {

// How a run was stopped, as one node knows it.
struct Stop {
  int exit_code = 0;            // What ddp-run would exit with.
  int warning = 0;              // The signal that asks for a checkpoint; 0: none.
  bool warned = false;          // ddp-run has received that signal.
  bool at_time_limit = false;   // The agent has stopped its workers because the time limit is near.
  bool terminated = false;      // ddp-run has received SIGTERM.
  bool has_checkpoint = false;  // A worker of this node has written a checkpoint.
  std::int64_t now = 0;         // Seconds since 1970.
};

// A run that was warned is continued: the sender of the signal asks for that. SLURM without control
// groups sends the signal to the workers, too. If a worker dies of it, the job's end may reach the
// other nodes before their own warning does, so such an end counts as a warning. A run that has
// reached its time limit is continued if it has written a checkpoint; without one it would start
// from the beginning for ever. A run that was cancelled, or that has ended by itself, is not
// continued.
bool is_to_be_continued(const Stop& stop, const std::optional<std::int64_t>& end_time);

}  // namespace ddp::slurm
