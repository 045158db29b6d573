#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/collective_calls.h"
#include "worker/runtime/process_group.h"

// Calls of the operations of collective_calls.h, whose results each rank checks to the bit.
namespace ddp::test {

// Memory of a rank's buffers: some is shared with the node's ranks, some is private.
class CallMemory {
 public:
  // bytes: capacity of each kind, for all buffers that are in use at a time.
  CallMemory(ProcessGroup& group, std::size_t bytes)
      : bytes_(bytes), registered_(group.allocate(bytes)), private_(new std::byte[bytes]) {
    EXPECT_NE(registered_, nullptr) << bytes << " bytes";
  }

  // Returns a buffer between guard bytes, at an unaligned address. Valid until clear().
  std::byte* take(std::size_t bytes, bool registered, std::uint64_t seed) {
    std::size_t& used = used_[registered ? 1 : 0];
    std::byte* base = registered ? registered_.get() : private_.get();
    const std::size_t begin = used + kGuard + seed % 64;
    used = begin + bytes + kGuard;
    if (base == nullptr || used > bytes_) throw std::length_error("CallMemory is too small");
    std::memset(base + begin - kGuard, kFill, bytes + 2 * kGuard);
    taken_.emplace_back(base + begin, bytes);
    return base + begin;
  }
  void clear() {
    used_[0] = used_[1] = 0;
    taken_.clear();
  }
  // Whether nothing was written outside the buffers.
  bool guards_hold() const {
    for (const auto& [data, bytes] : taken_) {
      for (std::size_t i = 1; i <= kGuard; ++i) {
        if (*(data - i) != std::byte{kFill} || data[bytes + i - 1] != std::byte{kFill})
          return false;
      }
    }
    return true;
  }

  static constexpr std::size_t kGuard = 32;
  static constexpr unsigned char kFill = 0xA5;

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> registered_;
  std::unique_ptr<std::byte[]> private_;
  std::size_t used_[2] = {};
  std::vector<std::pair<std::byte*, std::size_t>> taken_;
};

// A call that is under way on one rank.
class RunningCall {
 public:
  // registered: whether this rank's buffers are. Keeps the expected result until check().
  RunningCall(ProcessGroup& group, const CallShape& shape, const CallAnswer& answer,
              CallMemory& memory, bool registered, const OpOptions& options = {})
      : shape_(shape), rank_(group.rank()), size_(group.size()), memory_(memory) {
    given_ = answer.inputs[static_cast<std::size_t>(rank_)];
    expected_ = expected_output(shape, answer, rank_, size_);
    place(registered);
    work_ = issue(group, options);
  }

  const WorkPtr& work() const { return work_; }

  // Waits, then checks the result, the buffers that must not change, and the guard bytes.
  void check() {
    work_->wait();
    const std::string name = "rank " + std::to_string(rank_) + ", " + shape_.text();
    EXPECT_TRUE(same(out_, expected_)) << name << ": wrong result";
    EXPECT_TRUE(memory_.guards_hold()) << name << ": wrote beside a buffer";
    if (in_ == nullptr) return;
    std::vector<std::byte> kept = given_;
    if (shape_.in_place && shape_.call == Call::kReduceScatter && !expected_.empty()) {
      std::memcpy(kept.data() + static_cast<std::size_t>(rank_) * expected_.size(),
                  expected_.data(), expected_.size());
    }
    EXPECT_TRUE(same(in_, kept)) << name << ": changed its input";
  }

 private:
  static bool same(const std::byte* data, const std::vector<std::byte>& bytes) {
    return bytes.empty() || std::memcmp(data, bytes.data(), bytes.size()) == 0;
  }
  std::size_t elements(const std::vector<std::byte>& bytes) const {
    return bytes.size() / dtype_bytes(shape_.type);
  }

  void place(bool registered) {
    const std::size_t own =
        static_cast<std::size_t>(rank_) * shape_.count * dtype_bytes(shape_.type);
    const auto fill = [](std::byte* data, const std::vector<std::byte>& bytes) {
      if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
    };
    switch (shape_.call) {
      case Call::kAllReduce:
      case Call::kCoalesced:
      case Call::kBroadcast:
      case Call::kReduce:  // The buffer is both.
        out_ = memory_.take(expected_.size(), registered, shape_.seed);
        fill(out_, given_);
        return;
      case Call::kAllGather:
        if (!shape_.in_place) break;
        out_ = memory_.take(expected_.size(), registered, shape_.seed);
        in_ = out_ + own;
        fill(in_, given_);
        return;
      case Call::kReduceScatter:
        if (!shape_.in_place) break;
        in_ = memory_.take(given_.size(), registered, shape_.seed);
        fill(in_, given_);
        out_ = in_ + own;
        return;
      default:
        break;
    }
    in_ = memory_.take(given_.size(), registered, shape_.seed);
    fill(in_, given_);
    out_ = memory_.take(expected_.size(), registered, shape_.seed / 64);
  }

  WorkPtr issue(ProcessGroup& group, const OpOptions& options) {
    const ReduceOp op = shape_.reduction == ReduceOp::kPremulSum
                            ? ReduceOp::premul_sum(factor_of(rank_))
                            : ReduceOp(shape_.reduction);
    const Buffer in{in_, elements(given_), shape_.type};
    const Buffer out{out_, elements(expected_), shape_.type};
    switch (shape_.call) {
      case Call::kAllReduce:
        return group.all_reduce(out, op, options);
      case Call::kCoalesced:
        return group.all_reduce_coalesced(pieces_of(out), op, options);
      case Call::kBroadcast:
        return group.broadcast(out, shape_.root, options);
      case Call::kReduce:
        return group.reduce(out, shape_.root, op, options);
      case Call::kAllGather:
        return group.all_gather(in, out, options);
      case Call::kAllGatherV:
        return group.all_gatherv(in, out, gather_counts(shape_, size_), options);
      case Call::kReduceScatter:
        return group.reduce_scatter(in, out, op, options);
      case Call::kGather:
        return group.gather(in, out, shape_.root, options);
      case Call::kScatter:
        return group.scatter(in, out, shape_.root, options);
      case Call::kAllToAll:
        return group.all_to_all(in, out, options);
      case Call::kAllToAllV: {
        std::vector<std::size_t> send;
        std::vector<std::size_t> receive;
        for (Rank peer = 0; peer < size_; ++peer) {
          send.push_back(unequal_count(shape_, rank_, peer));
          receive.push_back(unequal_count(shape_, peer, rank_));
        }
        return group.all_to_allv(in, send, out, receive, options);
      }
      case Call::kBarrier:
        return group.barrier(options);
    }
    return nullptr;
  }

  // Cuts one buffer into several, some of them empty.
  std::vector<Buffer> pieces_of(const Buffer& whole) const {
    std::vector<Buffer> pieces;
    std::size_t begin = 0;
    for (std::uint64_t draw = shape_.seed; begin < whole.count; draw = mixed(draw + 1)) {
      const std::size_t count = std::min(whole.count - begin, draw % (whole.count / 3 + 2));
      pieces.push_back({static_cast<std::byte*>(whole.data) + begin * dtype_bytes(whole.type),
                        count, whole.type});
      begin += count;
    }
    if (pieces.empty()) pieces.push_back(whole);
    return pieces;
  }

  CallShape shape_;
  Rank rank_;
  int size_;
  CallMemory& memory_;
  std::byte* in_ = nullptr;  // Null where the output is also the input.
  std::byte* out_ = nullptr;
  std::vector<std::byte> given_;
  std::vector<std::byte> expected_;
  WorkPtr work_;
};

}  // namespace ddp::test
