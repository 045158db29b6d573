#pragma once

#include <cstdint>
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

// The round is over for this worker: abort what it waits in; SIGTERM follows.
struct Abort {
  Round round = kNoRound;
  std::string reason;
};

// Commit (write a checkpoint) at the next step boundary.
struct CommitRequest {
  std::int64_t deadline_ms = 0;  // Milliseconds it has; 0: no limit.
};

using WorkerMessage = std::variant<Hello, Progress, WorkerError>;
using WorkerOrder = std::variant<Abort, CommitRequest>;

std::string encode(const WorkerMessage& message);
std::string encode(const WorkerOrder& message);
Result<WorkerMessage> decode_worker_message(std::string_view payload);
Result<WorkerOrder> decode_worker_order(std::string_view payload);

}  // namespace ddp::wire
