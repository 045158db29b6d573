#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

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
  double loss = 0;
  double samples_per_second = 0;
};

// Said just before the worker ends badly, so that the report can name the cause.
struct WorkerError {
  std::string message;
  bool secondary = false;  // The cause lies with another rank.
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

using WorkerMessage = std::variant<Hello, Progress, WorkerError, Parked, Committed>;
using WorkerOrder = std::variant<Abort, CommitRequest, NewRound>;

std::string encode(const WorkerMessage& message);
std::string encode(const WorkerOrder& message);
Result<WorkerMessage> decode_worker_message(std::string_view payload);
Result<WorkerOrder> decode_worker_order(std::string_view payload);

}  // namespace ddp::wire
