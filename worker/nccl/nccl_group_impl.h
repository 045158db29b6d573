#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/nccl/device_operation.h"
#include "worker/nccl/nccl_group.h"

namespace ddp {

class FailureHub;
class NcclEngine;
class NcclRendezvous;

// What NcclGroup::make() returns: checks arguments (nccl_operations.cc) and gives the operations to
// an NcclEngine.
class NcclGroupImpl final : public NcclGroup {
 public:
  NcclGroupImpl(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Store> store,
                NcclGroupOptions options, std::shared_ptr<FailureHub> hub,
                std::shared_ptr<std::mutex> store_mutex);
  NcclGroupImpl(const NcclGroupImpl&) = delete;
  NcclGroupImpl& operator=(const NcclGroupImpl&) = delete;
  ~NcclGroupImpl() override;

  // What NcclGroup::make() does, in this order.
  void connect();
  void start_relay();

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
  WorkPtr batch(std::vector<Transfer> transfers, OpOptions options = {}) override;

  void monitored_barrier(std::chrono::milliseconds timeout = {},
                         bool wait_all_ranks = true) override;
  std::shared_ptr<ProcessGroup> new_group(std::span<const Rank> ranks) override;
  std::shared_ptr<ProcessGroup> split(int color, int key = 0) override;

  void abort(const std::string& reason) override;
  void abort_from_peer(const Failure& failure) override;

 private:
  [[noreturn]] void fail_connecting(Failure failure, bool tell);
  DeviceOperation operation_of(DeviceOpKind kind, Buffer in, Buffer out) const;
  void add_transfer(DeviceOperation& operation, Transfer::Direction direction, Rank peer,
                    const Buffer& whole, std::size_t begin, std::size_t count) const;
  void add_own_part(DeviceOperation& operation, const Buffer& in, std::size_t in_begin,
                    const Buffer& out, std::size_t out_begin, std::size_t count) const;
  WorkPtr issue(DeviceOperation operation, OpOptions options);
  std::shared_ptr<NcclGroupImpl> sub_group(const std::string& call,
                                           const std::vector<Rank>& members);
  void throw_if_failed() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<Store> store_;
  const NcclGroupOptions options_;
  const std::shared_ptr<FailureHub> hub_;  // Of the round's groups in this process.
  const std::unique_ptr<NcclRendezvous> rendezvous_;
  std::shared_ptr<NcclEngine> engine_;
  // One thread at a time uses the store, across all groups of the round.
  const std::shared_ptr<std::mutex> store_mutex_;
  std::uint64_t calls_ = 0;  // Under store_mutex_: calls of new_group, split and monitored_barrier.
};

}  // namespace ddp
