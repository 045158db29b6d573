#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/unique_fd.h"

namespace ddp {

// A place in the new round, which the agent gives to a process that already runs.
struct RoundPlace {
  Round round = kNoRound;
  // The variables of this process's environment that differ in that round.
  std::map<std::string, std::string> environment;
  UniqueFd memory;  // The node's shared memory in that round; empty if the agent sent none.
};

// The snapshot of this rank's share of a checkpoint (checkpoint/snapshot.h), for the agent to
// write.
struct SnapshotSubmission {
  std::string id;  // Unique among this process's snapshots in progress.
  std::int64_t step = -1;
  std::int64_t bytes = 0;
  int memfd =
      -1;  // The snapshot; has F_SEAL_SHRINK and must not change until the answer has arrived.
  int lock_fd = -1;  // Holds the folder's lock on the rank that publishes; else -1.
};

// The outcome of a submitted snapshot.
struct SnapshotResult {
  bool ok = false;
  std::string error;       // Why it failed, if not ok.
  std::string path;        // The checkpoint's path, on the rank that publishes it.
  std::int64_t bytes = 0;  // Written by this rank.
  double seconds = 0;      // Time that writing took.
  std::vector<std::string> warnings;
};

// The worker's end of the socket to its agent (DDP_CONTROL_FD). Without that variable every call
// does nothing, so a program needs no separate code for running alone. A failed write is ignored:
// the agent's death ends this process anyway.
//
// Owns the descriptor and one thread that reads orders. Any thread may call; nothing blocks.
class ControlChannel {
 public:
  // Called on the channel's thread, one at a time.
  struct Orders {
    std::function<void(const std::string& reason)> on_abort;
    std::function<void()> on_commit_request;
    std::function<void(RoundPlace place)> on_new_round = {};
    std::function<void()> on_end = {};  // The agent is gone. Called once, last.
  };

  // Makes the channel that the environment describes. Says hello with RANK and DDP_ROUND, or
  // without a rank if DDP_STANDBY says that this process has no place yet. reconfigurable: on an
  // abort, this process leaves the round, calls parked() and handles on_new_round; otherwise the
  // agent ends it with its round. Programs use ElasticWorker (runtime/elastic_worker.h) for that.
  // stack_signal: see wire::Hello.
  static std::unique_ptr<ControlChannel> from_environment(Orders orders,
                                                          bool reconfigurable = false,
                                                          int stack_signal = 0);
  virtual ~ControlChannel() = default;

  // Whether there is an agent.
  virtual bool connected() const = 0;
  // Reports progress. At most ten messages a second are sent; the others are dropped.
  // total_steps: of the whole training, for the time that is left; 0: unknown.
  virtual void progress(std::int64_t step, double loss, double samples_per_second,
                        std::int64_t total_steps) = 0;
  void progress(std::int64_t step, double loss, double samples_per_second) {
    progress(step, loss, samples_per_second, 0);
  }
  // The same with what the last call said besides the step.
  virtual void progress(std::int64_t step) = 0;
  // Repeats the last progress, so that a process that waits long for something else, such as a slow
  // disk, is not taken for hung. Does nothing before the first progress().
  virtual void still_waits() = 0;
  // Reports the error that ends this process. secondary: another rank caused it.
  virtual void error(const std::string& message, bool secondary) = 0;
  // The process is in the process group of the round.
  virtual void joined(Round round) = 0;
  // The process has left the round and waits for the next one. step: of its last commit; -1: none.
  virtual void parked(Round round, std::int64_t step) = 0;
  // Answers a commit request.
  virtual void committed(Round round, std::int64_t step) = 0;

  // How many snapshots of this process the agent accepts at once; 0 if it accepts none.
  virtual int snapshot_limit() const = 0;
  // Hands a snapshot to the agent, which has it written even if this process ends. Duplicates the
  // descriptors. Calls `done` exactly once, on the channel's thread or from its destructor, also if
  // the agent refuses or is gone; in the latter case it is not known whether the snapshot was
  // written. `done` may submit the next snapshot. Returns false and never calls `done` if
  // snapshot_limit() is 0, the agent is gone, a snapshot with this id is in progress or no
  // descriptor is left.
  virtual bool submit_snapshot(const SnapshotSubmission& snapshot,
                               std::function<void(const SnapshotResult&)> done) = 0;
  // How many times a checkpoint at the next step boundary was requested (SIGUSR1 to ddp-run).
  virtual std::int64_t checkpoint_requests() const = 0;
};

}  // namespace ddp
