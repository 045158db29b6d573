#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/store/store.h"
#include "worker/nccl/library.h"
#include "worker/nccl/nccl_work.h"
#include "worker/nccl/transfer.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp {

namespace nccl {
class FailureHub;
class NcclEngine;
class NcclRendezvous;
struct DeviceOperation;
}  // namespace nccl

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
  // A group of the same ranks for host memory. Each fails when the other does: so a rank that dies
  // ends the operations on devices within milliseconds, and the host group's failures need no store
  // or callback of their own. Without it, see below.
  std::shared_ptr<ProcessGroup> host_group;
  // NCCL does not tell the other ranks about a failure. If this store is given, they learn of it
  // within abort_interval. It must be a connection that nothing else uses.
  std::shared_ptr<Store> abort_store;
  std::chrono::milliseconds abort_interval{500};
  // Called once, by the thread that found it, with the first failure of this round's groups that
  // this process found itself. Use it to call the host group's abort(), or to tell the other ranks
  // by other means; there, call abort_from_peer(). It must neither block nor throw; it may drop the
  // last reference to the group.
  std::function<void(const Failure&)> on_abort;
};

// The ProcessGroup of one round for memory of CUDA devices, over NCCL. Every rank has a device of
// its own. What differs from a host group:
//
// * Buffers are device memory. An operation begins when the work that was in the caller's stream at
//   its issue is done; the host does not wait, except in the first operation of a kind, until NCCL
//   has connected the ranks for it. Work::wait() waits on the host;
//   NcclWork::wait_stream() orders a stream behind the operation instead. A stream-ordered
//   allocator must keep a buffer until its Work is done.
// * All operations, point to point too, run one after the other in one stream. send and recv are
//   matched by order, not by tag. Two ranks that send to each other before they receive hang until
//   the deadline; batch() issues both directions at once.
// * NCCL chooses the order of additions: the same on all ranks, and the same from run to run while
//   NCCL_ALGO, NCCL_PROTO and the topology do not change.
// * band, bor and bxor do not exist: they throw std::invalid_argument.
// * Ranks that call different operations hang until the deadline.
// * NCCL itself does not tell the other ranks about a failure. Within a process all groups of a
//   round, sub-groups too, fail together. For other processes see NcclGroupOptions::host_group,
//   abort_store and on_abort; with none of them, every rank waits for its own deadline.
// * allocate() gives device memory. monitored_barrier() works through the store, so also when NCCL
//   is stuck, and does not wait for the device.
// * `synchronous` waits after issuing.
// * Besides the codes of CollectiveError: kIo (the device, the system, NCCL) and kInvalidArgument
//   (NCCL refuses an argument).
//
// The group has threads of its own. The destructor fails operations that are not done, as
// abort() does. If all are done, it ends together with the other ranks of the node, within
// close_timeout.
class NcclGroup final : public ProcessGroup {
 public:
  // Collective: every rank of `options.size` calls it with the same name and round, within
  // connect_timeout. `store` is used by the calling thread here, and later by those that call
  // new_group, split and monitored_barrier, one at a time. Throws CollectiveError, whose text names
  // the ranks that did not arrive; std::invalid_argument for invalid options.
  static std::shared_ptr<NcclGroup> make(std::shared_ptr<const NcclLibrary> library,
                                         std::shared_ptr<Store> store,
                                         const NcclGroupOptions& options);

  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() override;

  // Sends and receives that make progress together, in any order.
  WorkPtr batch(std::vector<Transfer> transfers, OpOptions options = {});
  // Another rank reported this failure: all groups fail with it, and on_abort is not called.
  void abort_from_peer(const Failure& failure);

  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Round round() const override { return options_.round; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options = {}) override;
  WorkPtr all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                               OpOptions options = {}) override;
  WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options = {}) override;
  WorkPtr reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options = {}) override;
  WorkPtr all_gather(Buffer in, Buffer out, OpOptions options = {}) override;
  WorkPtr all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                      OpOptions options = {}) override;
  WorkPtr reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options = {}) override;
  WorkPtr gather(Buffer in, Buffer out, Rank root, OpOptions options = {}) override;
  WorkPtr scatter(Buffer in, Buffer out, Rank root, OpOptions options = {}) override;
  WorkPtr all_to_all(Buffer in, Buffer out, OpOptions options = {}) override;
  WorkPtr all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                      std::span<const std::size_t> receive_counts, OpOptions options = {}) override;
  WorkPtr barrier(OpOptions options = {}) override;
  WorkPtr send(Buffer buffer, Rank to, std::uint32_t tag = 0, OpOptions options = {}) override;
  WorkPtr recv(Buffer buffer, Rank from, std::uint32_t tag = 0, OpOptions options = {}) override;
  void monitored_barrier(std::chrono::milliseconds timeout = {},
                         bool wait_all_ranks = true) override;
  std::shared_ptr<ProcessGroup> new_group(std::span<const Rank> ranks) override;
  std::shared_ptr<ProcessGroup> split(int color, int key = 0) override;
  void abort(const std::string& reason) override;
  void abort_with(const Failure& cause) override;
  Outcome failure() const override;

  // The stream in which the operations run, for work of the caller's that belongs behind one.
  cuda::Stream stream() const;

 private:
  NcclGroup(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Store> store,
            NcclGroupOptions options, std::shared_ptr<nccl::FailureHub> hub,
            std::shared_ptr<std::mutex> store_mutex);
  void connect();
  void start_relay();
  [[noreturn]] void fail_connecting(Failure failure, bool tell);
  WorkPtr issue(nccl::DeviceOperation operation, OpOptions options);
  std::shared_ptr<NcclGroup> sub_group(const std::string& call, const std::vector<Rank>& members);
  void throw_if_failed() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<Store> store_;
  const NcclGroupOptions options_;
  const std::shared_ptr<nccl::FailureHub> hub_;  // Of the round's groups in this process.
  const std::unique_ptr<nccl::NcclRendezvous> rendezvous_;
  std::shared_ptr<nccl::NcclEngine> engine_;
  // One thread at a time uses the store, across all groups of the round.
  const std::shared_ptr<std::mutex> store_mutex_;
  std::uint64_t calls_ = 0;  // Under store_mutex_: calls of new_group, split and monitored_barrier.
};

}  // namespace ddp
