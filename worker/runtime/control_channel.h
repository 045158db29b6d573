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

// A place in the round that begins, as the agent gives it to a process that is there already.
struct RoundPlace {
  Round round = kNoRound;
  // What of this process's environment differs in that round.
  std::map<std::string, std::string> environment;
  UniqueFd memory;  // Shared memory of the node in that round; empty if the agent sent none.
};

// The image of this rank's share of a checkpoint (checkpoint/snapshot.h), for the agent to write.
struct SnapshotSubmission {
  std::string id;  // Unlike that of any other of this process that is under way.
  std::int64_t step = -1;
  std::int64_t bytes = 0;
  int memfd = -1;    // The image; has F_SEAL_SHRINK and stays as it is until the answer has come.
  int lock_fd = -1;  // Holds the folder's lock, of the rank that publishes; else -1.
};

// What became of it.
struct SnapshotResult {
  bool ok = false;
  std::string error;       // Why not ok.
  std::string path;        // Of the checkpoint, for the rank that publishes it.
  std::int64_t bytes = 0;  // Written by this rank,
  double seconds = 0;      // in so much time.
  std::vector<std::string> warnings;
};

// The worker's end of the socket to its agent (DDP_CONTROL_FD). Without that variable every call
// does nothing, so a program needs no second path for running alone. A failed write is ignored: the
// agent's death ends this process anyway.
//
// Owns the descriptor and one thread that reads orders. Any thread may call; nothing blocks.
class ControlChannel {
 public:
  // All are called on the channel's thread, one after the other.
  struct Orders {
    std::function<void(const std::string& reason)> on_abort;
    std::function<void()> on_commit_request;
    std::function<void(RoundPlace place)> on_new_round = {};
    std::function<void()> on_end = {};  // The agent is gone, once; nothing follows.
  };

  // The channel of this process's environment; says hello with RANK and DDP_ROUND, or with no rank
  // if DDP_STANDBY says that this process has no place yet. reconfigurable: this process leaves a
  // round when it is told to, says parked() and takes on_new_round = {}; else the agent ends it
  // with its round. Programs use ElasticWorker (runtime/elastic_worker.h) for that.
  static std::unique_ptr<ControlChannel> from_environment(Orders orders,
                                                          bool reconfigurable = false);
  virtual ~ControlChannel() = default;

  // Whether there is an agent.
  virtual bool connected() const = 0;
  // At most ten messages a second leave; the others are dropped.
  virtual void progress(std::int64_t step, double loss, double samples_per_second) = 0;
  // The same with the loss and the rate that progress() was told last.
  virtual void progress(std::int64_t step) = 0;
  // For who waits, perhaps for long, for something that goes on elsewhere, such as a slow disk:
  // says the last progress again, so that it is not taken for hung. Nothing before the first.
  virtual void still_waits() = 0;
  // Call before ending badly. secondary: the cause lies with another rank.
  virtual void error(const std::string& message, bool secondary) = 0;
  // The process has left the round and waits for the next one. step: of its last commit, -1: none.
  virtual void parked(Round round, std::int64_t step) = 0;
  // Answers a commit request.
  virtual void committed(Round round, std::int64_t step) = 0;

  // How many snapshots of this process the agent takes at once; 0 without one that can.
  virtual int snapshot_limit() const = 0;
  // Hands a snapshot to the agent, which has it written even if this process ends. The descriptors
  // are duplicated. `done` comes once, on the channel's thread, or from its destructor: also when
  // the agent refuses, or is gone; whether the snapshot was written is then not known. It may
  // submit the next one. False, and no `done`, where snapshot_limit() is 0, the agent is gone, the
  // id is under way or there is no descriptor left.
  virtual bool submit_snapshot(const SnapshotSubmission& snapshot,
                               std::function<void(const SnapshotResult&)> done) = 0;
  // How often a checkpoint at the next step boundary was asked for (SIGUSR1 to ddp-run).
  virtual std::int64_t checkpoint_requests() const = 0;
};

}  // namespace ddp
