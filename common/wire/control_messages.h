#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

// Messages on the socket between an agent and its worker (DDP_CONTROL_FD). JSON objects in frames.
// A worker need not use the socket at all.
namespace ddp::wire {

// ---- worker to agent ----

// First message: this worker is linked with libddp.
struct Hello {
  Rank rank = -1;
  int pid = 0;
  Round round = kNoRound;
  // It can take part in the next round without being started again: after `abort` it sends `parked`
  // and waits for `new_round`.
  bool reconfigurable = false;
  // On this signal the process `pid` writes what its interpreter is doing to its standard error,
  // and goes on; 0: there is no such signal.
  int stack_signal = 0;
};

// The worker is in the process group of the round, so all of the round's workers have met, and need
// the rendezvous' store no more for that. From workers that are reconfigurable.
struct Joined {
  Round round = kNoRound;
};

// The worker has left the round: no operation of that round runs in this process any more. It waits
// for `new_round`.
struct Parked {
  Round round = kNoRound;
  std::int64_t step = -1;  // The step of its last commit; -1: none.
};

// Answer to `commit_request`.
struct Committed {
  Round round = kNoRound;
  std::int64_t step = -1;
};

// Sent after a step, at most ten times a second. Also the sign of life.
struct Progress {
  std::int64_t step = -1;
  double loss = 0;                // May be NaN; 0: the program tells none.
  double samples_per_second = 0;  // NaN: unknown.
  std::int64_t total_steps = 0;   // Of the whole training; 0: unknown.
  // At the end of that step: how long the worker has not waited for other ranks, in milliseconds
  // from any fixed moment on; NaN: unknown.
  double computed_ms = std::numeric_limits<double>::quiet_NaN();
};

// "NaN", "inf" or "-inf", because JSON has no such numbers; empty if the loss is finite.
std::string name_if_not_finite(double loss);

// Sent just before the worker ends badly, so that the report can name the cause.
struct WorkerError {
  std::string message;
  bool secondary = false;  // The cause lies with another rank.
};

// Asks the agent to write this snapshot to its place (worker/checkpoint/snapshot.h).
// The frame's first byte carries the snapshot, a memfd that nobody changes before the answer. If
// `locked`, the descriptor that holds the folder's lock follows it. The agent has the snapshot
// written even if this worker ends. It always answers with `snapshot_written`.
struct SubmitSnapshot {
  std::string id;  // Unique among the snapshots of this worker that are not answered yet.
  std::int64_t step = -1;
  std::int64_t bytes = 0;  // The memfd has at least this many.
  bool locked = false;
};

// ---- agent to worker ----

// The round is over for this worker: abort the operation that it waits in. A reconfigurable worker
// parks. Any other gets SIGTERM.
struct Abort {
  Round round = kNoRound;
  std::string reason;
};

// Commit at the next step boundary, answer `committed` and go on.
struct CommitRequest {
  Round round = kNoRound;
  std::int64_t deadline_ms = 0;  // How many milliseconds the worker has; 0: no limit.
};

// Tells a parked worker or a standby its place in the round that begins. The frame's first byte
// carries one descriptor (SCM_RIGHTS), the shared memory of that round.
struct NewRound {
  Round round = kNoRound;
  // Environment variables that change from now on, except DDP_SHM_FD.
  std::map<std::string, std::string> environment;
};

// What became of a `snapshot`.
struct SnapshotWritten {
  std::string id;
  bool ok = false;
  std::string error;  // Why not ok, for people.
  std::string path;   // The path of the checkpoint; empty except on the rank that publishes it.
  std::int64_t bytes = 0;  // How much this rank has written.
  double seconds = 0;      // How long that took.
  std::vector<std::string> warnings;
};

// Asks for a checkpoint at the next step boundary, because ddp-run got SIGUSR1. No answer.
struct CheckpointRequest {};

using WorkerMessage =
    std::variant<Hello, Progress, WorkerError, Joined, Parked, Committed, SubmitSnapshot>;
using WorkerOrder =
    std::variant<Abort, CommitRequest, NewRound, SnapshotWritten, CheckpointRequest>;

std::string encode(const WorkerMessage& message);
std::string encode(const WorkerOrder& message);
Result<WorkerMessage> decode_worker_message(std::string_view payload);
Result<WorkerOrder> decode_worker_order(std::string_view payload);

}  // namespace ddp::wire
