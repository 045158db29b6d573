#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Whether SLURM is to start a job again whose run has been stopped. Pure.
namespace ddp::slurm {

// How a run was stopped, as one node knows it.
struct Stop {
  int exit_code = 0;            // What ddp-run would exit with.
  int warning = 0;              // The signal that asks for a checkpoint; 0: none.
  bool warned = false;          // It has come to ddp-run.
  bool at_time_limit = false;   // The agent has stopped its workers since the limit is near.
  bool terminated = false;      // SIGTERM has come.
  bool has_checkpoint = false;  // A worker of this node has had a checkpoint written.
  std::int64_t now = 0;         // Seconds since 1970.
};

// A run that was warned is to be continued: whoever sends that signal asks for it. SLURM without
// control groups sends it to the workers too, and where a worker dies of it first, the job's end
// reaches the other nodes before their own warning does. So that end counts as one. A run that has
// come to its time limit is if it has written a checkpoint; else it would begin anew for ever. One
// that somebody has cancelled is not, nor is one that has ended by itself.
bool is_to_be_continued(const Stop& stop, const std::optional<std::int64_t>& end_time);

}  // namespace ddp::slurm
