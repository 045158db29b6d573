#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/store/store.h"
#include "worker/nccl/library.h"
#include "worker/nccl/nccl_work.h"
#include "worker/nccl/types.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp {

struct NcclGroupOptions : ProcessGroupOptions {
  Rank rank = 0;
  int size = 1;
  Round round = 0;
  int device = 0;                // A device of this process that no other rank uses.
  std::string name = "default";  // The group's name; unique within the round.
  bool high_priority = true;     // Priority of the group's stream over computation.
  // Returns the stream that produces an operation's input. Called when the operation is issued, on
  // the issuing thread. If empty: the device's default stream. With LibTorch:
  // at::cuda::getCurrentCUDAStream().
  std::function<cuda::Stream()> current_stream;
  // How long pending operations wait for ncclCommAbort before they fail anyway.
  std::chrono::milliseconds abort_grace{std::chrono::seconds(10)};
  // How long the destructor waits for the other ranks of the node to end theirs.
  std::chrono::milliseconds close_timeout{std::chrono::seconds(30)};
  // NCCL does not tell the other ranks about a failure. If this store is given, they learn of it
  // within abort_interval. It must be a connection that nothing else uses.
  std::shared_ptr<Store> abort_store;
  std::chrono::milliseconds abort_interval{500};
  // Called once, by the thread that found it, with the first failure of this round's groups that
  // this process found itself. Use it to call the host group's abort(), or to tell the other ranks
  // by other means; there, call abort_from_peer(). It must neither block nor throw; it may drop the
  // last reference to the group.
  std::function<void(const Failure&)> on_abort;
  // Compares what ranks call before NCCL sees it, so that a difference is kMismatch and not a hang.
  // It costs a host collective for each operation. DDP_NCCL_CHECK=1 in the environment sets it,
  // too. Needs check_group: a host group of the same ranks that nothing else uses. Sub-groups are
  // not checked.
  bool check = false;
  std::shared_ptr<ProcessGroup> check_group;
};

// The ProcessGroup of one round for memory of CUDA devices, over NCCL. Every rank has a device of
// its own. What differs from a host group:
//
// * Buffers are device memory. An operation begins when the work that was in the caller's stream at
//   its issue is done; the host does not wait. Work::wait() waits on the host;
//   NcclWork::wait_stream() orders a stream behind the operation instead. A stream-ordered
//   allocator must keep a buffer until its Work is done.
// * All operations, point to point too, run one after the other in one stream. send and recv are
//   matched by order, not by tag. Two ranks that send to each other before they receive hang until
//   the deadline; batch() issues both directions at once.
// * NCCL chooses the order of additions: the same on all ranks, and the same from run to run while
//   NCCL_ALGO, NCCL_PROTO and the topology do not change.
// * band, bor and bxor do not exist: they throw std::invalid_argument.
// * Ranks that call different operations hang until the deadline, unless NcclGroupOptions::check.
// * NCCL itself does not tell the other ranks about a failure. Within a process all groups of a
//   round, sub-groups too, fail together. For other processes see NcclGroupOptions::abort_store and
//   on_abort; with neither, every rank waits for its own deadline.
// * allocate() gives device memory. monitored_barrier() works through the store, so also when NCCL
//   is stuck, and does not wait for the device.
// * `synchronous` waits after issuing; there is no priority channel.
// * Besides the codes of CollectiveError: kIo (the device, the system, NCCL) and kInvalidArgument
//   (NCCL refuses an argument).
//
// The group has threads of its own. The destructor fails operations that are not done, as
// abort() does. If all are done, it ends together with the other ranks of the node, within
// close_timeout.
class NcclGroup : public ProcessGroup {
 public:
  // Collective: every rank of `options.size` calls it with the same name and round, within
  // connect_timeout. `store` is used by the calling thread here, and later by those that call
  // new_group, split and monitored_barrier, one at a time. Throws CollectiveError, whose text names
  // the ranks that did not arrive; std::invalid_argument for invalid options.
  static std::shared_ptr<NcclGroup> make(std::shared_ptr<const NcclLibrary> library,
                                         std::shared_ptr<Store> store,
                                         const NcclGroupOptions& options);

  // Sends and receives that make progress together, in any order.
  virtual WorkPtr batch(std::vector<Transfer> transfers, OpOptions options = {}) = 0;
  // Another rank reported this failure: all groups fail with it, and on_abort is not called.
  virtual void abort_from_peer(const Failure& failure) = 0;
};

}  // namespace ddp
