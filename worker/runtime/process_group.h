#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "common/base/ids.h"
#include "worker/collectives/types.h"

namespace ddp {

// A collective did not complete. Thrown by Work::wait and by every later call on the same group,
// with the first cause. The group is of no further use; the process can end, or (in-process
// recovery) build the group of the next round. The contents of buffers that took part are
// undefined.
class CollectiveError : public std::runtime_error {
 public:
  CollectiveError(const std::string& text, std::error_code error_code, Rank suspect)
      : std::runtime_error(text), code(error_code), suspect_rank(suspect) {}
  std::error_code code;  // kTimeout, kPeerLost, kAborted, kMismatch, kProtocol.
  Rank suspect_rank;     // The rank to blame, -1 if it is not known.
};

// One issued collective. Any thread may call; the object may outlive the group. Destruction never
// blocks.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the operation has completed; throws CollectiveError if it failed. Never waits
  // longer than the operation's deadline and the time an abort takes.
  virtual void wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

struct OpOptions {
  std::chrono::milliseconds timeout{0};  // 0: the group's.
  std::string tag;                       // Named in error messages: "bucket 3 (layer4.*)".
};

struct ProcessGroupOptions {
  std::chrono::milliseconds timeout{
      std::chrono::minutes(10)};  // Deadline of an operation, from its issue.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(2)};
};

// The workers of one round, acting together. Shared memory carries data inside a node and TCP
// between nodes; which, follows from the environment that the agent gives.
//
// Operations are matched by the order of issue, which must be the same on all ranks. They run one
// after the other on the group's communication thread. Buffers belong to the caller, who keeps them
// alive and untouched until the Work is done. Every element is summed in rank order 0, 1, ..., size
// - 1, whatever the message's size and however ranks are spread over nodes, so results are
// identical on all ranks, from run to run, and for any bucket layout.
//
// Any thread may call, but the order of issue must be agreed, so usually one does.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  // The group that the environment of this worker describes (RANK, WORLD_SIZE, LOCAL_RANK,
  // LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, DDP_ROUND, DDP_SHM_FD, MASTER_ADDR,
  // MASTER_PORT). Without WORLD_SIZE: a group of one. Collective. Throws CollectiveError, or
  // std::invalid_argument naming the variable that is wrong.
  static std::shared_ptr<ProcessGroup> from_environment(const ProcessGroupOptions& options = {});

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Round round() const = 0;

  virtual WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options = {}) = 0;
  virtual WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options = {}) = 0;
  // out.count == in.count * size(); rank r's input lands at out + r * in.count. in may be its own
  // slot of out.
  virtual WorkPtr all_gather(Buffer in, Buffer out, OpOptions options = {}) = 0;
  virtual WorkPtr barrier(OpOptions options = {}) = 0;

  // Fails every operation that is running or comes later, here and on all other ranks. Any thread,
  // any number of times; the first reason counts.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddp
