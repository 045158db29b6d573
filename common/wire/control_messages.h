#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

// Messages on the socket that an agent leaves to its worker (DDP_CONTROL_FD). JSON objects in
// frames. A worker that never reads or writes it is a worker like any other.
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
};

// It has left the round: no operation of it runs in this process, nor ever will. Waits for
// `new_round`.
struct Parked {
  Round round = kNoRound;
  std::int64_t step = -1;  // Of its last commit, -1: none.
};

// Answer to `commit_request`.
struct Committed {
  Round round = kNoRound;
  std::int64_t step = -1;
};

// After a step, at most ten a second; also the sign of life.
struct Progress {
  std::int64_t step = -1;
  double loss = 0;                // NaN where it is no number.
  double samples_per_second = 0;  // NaN: unknown.
};

// Said just before the worker ends badly, so that the report can name the cause.
struct WorkerError {
  std::string message;
  bool secondary = false;  // The cause lies with another rank.
};

// Please write this image of a checkpoint to its place (worker/checkpoint/snapshot.h). The frame's
// first byte carries the image, a memfd that nobody changes before the answer, and behind it, where
// `locked`, the descriptor that holds the folder's lock. The agent has the image written even if
// this worker ends; `snapshot_written` answers in any case.
struct SubmitSnapshot {
  std::string id;  // Unlike that of any other of this worker that is not answered yet.
  std::int64_t step = -1;
  std::int64_t bytes = 0;  // The memfd has at least as many.
  bool locked = false;
};

// ---- agent to worker ----

// The round is over for this worker: abort what it waits in. A reconfigurable worker parks; any
// other gets SIGTERM.
struct Abort {
  Round round = kNoRound;
  std::string reason;
};

// Commit at the next step boundary, answer `committed` and go on.
struct CommitRequest {
  Round round = kNoRound;
  std::int64_t deadline_ms = 0;  // Milliseconds it has; 0: no limit.
};

// To a parked worker, or one that was started as a standby: its place in the round that begins. The
// frame's first byte carries one descriptor (SCM_RIGHTS), the shared memory of that round.
struct NewRound {
  Round round = kNoRound;
  // What of its environment differs from now on, DDP_SHM_FD excepted.
  std::map<std::string, std::string> environment;
};

// What became of a `snapshot`.
struct SnapshotWritten {
  std::string id;
  bool ok = false;
  std::string error;       // Why not ok, for people.
  std::string path;        // Of the checkpoint; empty but for the rank that publishes it.
  std::int64_t bytes = 0;  // Written by this rank,
  double seconds = 0;      // in so much time.
  std::vector<std::string> warnings;
};

// Somebody wants a checkpoint at the next step boundary: ddp-run got SIGUSR1. No answer.
struct CheckpointRequest {};

using WorkerMessage = std::variant<Hello, Progress, WorkerError, Parked, Committed, SubmitSnapshot>;
using WorkerOrder =
    std::variant<Abort, CommitRequest, NewRound, SnapshotWritten, CheckpointRequest>;

std::string encode(const WorkerMessage& message);
std::string encode(const WorkerOrder& message);
Result<WorkerMessage> decode_worker_message(std::string_view payload);
Result<WorkerOrder> decode_worker_order(std::string_view payload);

}  // namespace ddp::wire
