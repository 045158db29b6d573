#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/rank_threads.h"
#include "worker/runtime/process_group.h"

namespace ddp::test {

// Forwards to a group, and records the issued operations and the allocated memory.
class RecordingGroup : public ProcessGroup {
 public:
  explicit RecordingGroup(GroupPtr group) : group_(std::move(group)) {}
  Rank rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  Round round() const override { return group_->round(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto memory = out_of_memory ? nullptr : group_->allocate(bytes);
    const std::lock_guard lock(mutex_);
    if (memory) ranges_.emplace_back(memory.get(), bytes);
    return memory;
  }
  WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options) override {
    if (!gave(in_out.data, in_out.bytes())) ++reduced_elsewhere;
    return group_->all_reduce(in_out, op, record(options));
  }
  WorkPtr all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                               OpOptions options) override {
    return group_->all_reduce_coalesced(in_out, op, record(options));
  }
  WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options) override {
    return group_->broadcast(in_out, root, record(options));
  }
  WorkPtr reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options) override {
    return group_->reduce(in_out, root, op, record(options));
  }
  WorkPtr all_gather(Buffer in, Buffer out, OpOptions options) override {
    return group_->all_gather(in, out, record(options));
  }
  WorkPtr all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                      OpOptions options) override {
    return group_->all_gatherv(in, out, counts, record(options));
  }
  WorkPtr reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options) override {
    return group_->reduce_scatter(in, out, op, record(options));
  }
  WorkPtr gather(Buffer in, Buffer out, Rank root, OpOptions options) override {
    return group_->gather(in, out, root, record(options));
  }
  WorkPtr scatter(Buffer in, Buffer out, Rank root, OpOptions options) override {
    return group_->scatter(in, out, root, record(options));
  }
  WorkPtr all_to_all(Buffer in, Buffer out, OpOptions options) override {
    return group_->all_to_all(in, out, record(options));
  }
  WorkPtr all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                      std::span<const std::size_t> receive_counts, OpOptions options) override {
    return group_->all_to_allv(in, send_counts, out, receive_counts, record(options));
  }
  WorkPtr barrier(OpOptions options) override { return group_->barrier(std::move(options)); }
  WorkPtr send(Buffer buffer, Rank to, std::uint32_t tag, OpOptions options) override {
    return group_->send(buffer, to, tag, record(options));
  }
  WorkPtr recv(Buffer buffer, Rank from, std::uint32_t tag, OpOptions options) override {
    return group_->recv(buffer, from, tag, record(options));
  }
  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) override {
    group_->monitored_barrier(timeout, wait_all_ranks);
  }
  std::shared_ptr<ProcessGroup> new_group(std::span<const Rank> ranks) override {
    return group_->new_group(ranks);
  }
  std::shared_ptr<ProcessGroup> split(int color, int key) override {
    return group_->split(color, key);
  }
  void abort(const std::string& reason) override { group_->abort(reason); }
  void abort_with(const Failure& cause) override { group_->abort_with(cause); }
  std::optional<Failure> failure() const override { return group_->failure(); }

  // Tags of the operations since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(tags_, {});
  }

  // Whether allocate() gave this memory, which may have been released since.
  bool gave(const void* data, std::size_t bytes) const {
    const auto* begin = static_cast<const std::byte*>(data);
    const std::lock_guard lock(mutex_);
    for (const auto& [first, size] : ranges_) {
      if (begin >= first && begin + bytes <= first + size) return true;
    }
    return false;
  }
  bool out_of_memory = false;              // allocate() gives nothing.
  std::atomic<int> reduced_elsewhere = 0;  // Calls of all_reduce for other memory.

 private:
  OpOptions record(const OpOptions& options) {
    const std::lock_guard lock(mutex_);
    tags_.push_back(options.tag.str());
    return options;
  }
  GroupPtr group_;
  mutable std::mutex mutex_;
  std::vector<std::string> tags_;
  std::vector<std::pair<const std::byte*, std::size_t>> ranges_;
};

}  // namespace ddp::test
