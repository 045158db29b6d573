#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/collectives/kernels.h"
#include "worker/collectives/operation.h"
#include "worker/runtime/process_group.h"

// Calls of any collective operation on inputs that follow from a seed, so that every rank knows
// what every other gives and checks its own result to the bit.
namespace ddp::test {

enum class Call {
  kAllReduce,
  kCoalesced,
  kBroadcast,
  kReduce,
  kAllGather,
  kAllGatherV,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kBarrier,
};
inline constexpr int kCalls = 12;

struct CallShape {
  Call call = Call::kBarrier;
  DType type = DType::kF32;
  ReduceOp::Kind reduction = ReduceOp::kSum;
  // Elements of the buffer, or of a block of those that have one for each rank; of unequal blocks
  // the mean.
  std::size_t count = 0;
  Rank root = 0;
  std::uint64_t seed = 0;
  bool in_place = false;  // Where the interface allows it: all_gather, reduce_scatter.

  std::string text() const {
    return "call " + std::to_string(static_cast<int>(call)) + " of " + std::to_string(count) + " " +
           name_of(type) + " (" + name_of(reduction) + "), root " + std::to_string(root) +
           ", seed " + std::to_string(seed) + (in_place ? ", in place" : "");
  }
};

inline bool has_block_for_each_rank(Call call) {
  return call == Call::kAllGather || call == Call::kAllGatherV || call == Call::kReduceScatter ||
         call == Call::kGather || call == Call::kScatter || call == Call::kAllToAll ||
         call == Call::kAllToAllV;
}

inline std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Bits that are an ordinary number of the type, of one of many magnitudes.
inline std::uint64_t as_number(DType type, std::uint64_t bits) {
  switch (type) {
    case DType::kF16:
      return (bits & 0x83FF) | ((9 + (bits >> 40) % 10) << 10);
    case DType::kBF16:
      return (bits & 0x807F) | ((115 + (bits >> 40) % 24) << 7);
    case DType::kF32:
      return (bits & 0x807FFFFF) | ((115 + (bits >> 40) % 24) << 23);
    case DType::kF64:
      return (bits & 0x800FFFFFFFFFFFFF) | ((1000 + mixed(bits) % 40) << 52);
    default:
      return bits;
  }
}

// What rank `rank` gives.
inline std::vector<std::byte> call_input(const CallShape& shape, Rank rank, std::size_t count) {
  const std::size_t element = dtype_bytes(shape.type);
  std::vector<std::byte> bytes(count * element);
  const std::uint64_t start = mixed(shape.seed * 8191 + static_cast<std::uint64_t>(rank) + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = as_number(shape.type, mixed(start + i * 0x9e3779b97f4a7c15u));
    std::memcpy(bytes.data() + i * element, &bits, element);
  }
  return bytes;
}

// Elements that `from` gives to `to` where blocks are unequal; often none.
inline std::size_t unequal_count(const CallShape& shape, Rank from, Rank to) {
  const std::uint64_t draw = mixed(shape.seed * 131 + static_cast<std::uint64_t>(from) * 1009 +
                                   static_cast<std::uint64_t>(to));
  return draw % 4 == 0 ? 0 : (draw >> 8) % (2 * shape.count + 1);
}

// all_gatherv gives the same to all.
inline std::vector<std::size_t> gather_counts(const CallShape& shape, int size) {
  std::vector<std::size_t> counts;
  for (Rank rank = 0; rank < size; ++rank) counts.push_back(unequal_count(shape, rank, 0));
  return counts;
}

inline double factor_of(Rank rank) { return 1.0 / (rank + 3); }

// What goes in and comes out of a call, of all ranks.
struct CallAnswer {
  std::vector<std::vector<std::byte>> inputs;  // By rank.
  std::vector<std::byte> reduced;              // Of a reduction: of the whole inputs.
};

inline std::size_t input_count(const CallShape& shape, Rank rank, int size) {
  switch (shape.call) {
    case Call::kAllGatherV:
      return unequal_count(shape, rank, 0);
    case Call::kAllToAllV: {
      std::size_t total = 0;
      for (Rank to = 0; to < size; ++to) total += unequal_count(shape, rank, to);
      return total;
    }
    case Call::kScatter:
      return rank == shape.root ? shape.count * static_cast<std::size_t>(size) : 0;
    case Call::kReduceScatter:
    case Call::kAllToAll:
      return shape.count * static_cast<std::size_t>(size);
    case Call::kBarrier:
      return 0;
    default:
      return shape.count;
  }
}

// The reduction itself is kernels_test's subject; here it is applied to all ranks' inputs at once.
inline CallAnswer answer_of(const CallShape& shape, int size) {
  CallAnswer answer;
  for (Rank rank = 0; rank < size; ++rank)
    answer.inputs.push_back(call_input(shape, rank, input_count(shape, rank, size)));
  const bool reduces = shape.call == Call::kAllReduce || shape.call == Call::kCoalesced ||
                       shape.call == Call::kReduce || shape.call == Call::kReduceScatter;
  if (!reduces) return answer;
  const std::size_t bytes = answer.inputs[0].size();
  answer.reduced.resize(bytes);
  std::vector<RankRange> ranges;
  std::vector<const std::byte*> sources;
  std::vector<double> factors;
  for (Rank rank = 0; rank < size; ++rank) {
    ranges.push_back({rank, rank + 1});
    sources.push_back(answer.inputs[static_cast<std::size_t>(rank)].data());
    factors.push_back(factor_of(rank));
  }
  Reduction reduction{shape.type, shape.type, shape.reduction, size, {}};
  if (shape.reduction == ReduceOp::kPremulSum) reduction.factors = factors;
  std::byte* target = answer.reduced.data();
  reduce(reduction, ranges, sources, {&target, 1}, bytes / dtype_bytes(shape.type));
  return answer;
}

// What rank `self` has in its output afterwards.
inline std::vector<std::byte> expected_output(const CallShape& shape, const CallAnswer& answer,
                                              Rank self, int size) {
  const auto index = [](Rank rank) { return static_cast<std::size_t>(rank); };
  const std::size_t element = dtype_bytes(shape.type);
  const std::size_t block = shape.count * element;
  std::vector<std::byte> out;
  const auto append = [&](const std::vector<std::byte>& from, std::size_t begin,
                          std::size_t bytes) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(bytes));
  };
  switch (shape.call) {
    case Call::kAllReduce:
    case Call::kCoalesced:
      return answer.reduced;
    case Call::kReduce:
      return self == shape.root ? answer.reduced : answer.inputs[index(self)];
    case Call::kBroadcast:
      return answer.inputs[index(shape.root)];
    case Call::kReduceScatter:
      append(answer.reduced, index(self) * block, block);
      return out;
    case Call::kScatter:
      append(answer.inputs[index(shape.root)], index(self) * block, block);
      return out;
    case Call::kGather:
      if (self != shape.root) return out;
      [[fallthrough]];
    case Call::kAllGather:
    case Call::kAllGatherV:
      for (const auto& input : answer.inputs) append(input, 0, input.size());
      return out;
    case Call::kAllToAll:
      for (const auto& input : answer.inputs) append(input, index(self) * block, block);
      return out;
    case Call::kAllToAllV:
      for (Rank from = 0; from < size; ++from) {
        std::size_t begin = 0;
        for (Rank to = 0; to < self; ++to) begin += unequal_count(shape, from, to) * element;
        append(answer.inputs[index(from)], begin, unequal_count(shape, from, self) * element);
      }
      return out;
    case Call::kBarrier:
      return out;
  }
  return out;
}

// Where a rank's buffers lie: some in memory that the node's ranks reach, some in its own.
class CallMemory {
 public:
  // bytes: of all buffers that are in use at a time, of each kind.
  CallMemory(ProcessGroup& group, std::size_t bytes)
      : bytes_(bytes), registered_(group.allocate(bytes)), private_(new std::byte[bytes]) {
    EXPECT_NE(registered_, nullptr) << bytes << " bytes";
  }

  // Between guards and at an address that no type would choose. Valid until clear().
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
  // Whether nothing was written beside a buffer.
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
  // registered: of this rank's buffers. What is expected is kept until check().
  RunningCall(ProcessGroup& group, const CallShape& shape, const CallAnswer& answer,
              CallMemory& memory, bool registered, const OpOptions& options = {})
      : shape_(shape), rank_(group.rank()), size_(group.size()), memory_(memory) {
    given_ = answer.inputs[static_cast<std::size_t>(rank_)];
    expected_ = expected_output(shape, answer, rank_, size_);
    place(registered);
    work_ = issue(group, options);
  }

  const WorkPtr& work() const { return work_; }

  // Waits. The result, what must stay as it is, and the bytes beside.
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

  // One buffer as several, now and then an empty one.
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
