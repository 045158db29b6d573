#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/operation.h"

// Inputs and expected results of all collective operations. Inputs depend on a seed, so every rank
// knows those of all others. running_call.h makes the calls.
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
  // Elements of the buffer, or of each block if there is one for each rank; with unequal blocks
  // the mean.
  std::size_t count = 0;
  Rank root = 0;
  std::uint64_t seed = 0;
  bool in_place = false;  // If the interface allows it: all_gather, reduce_scatter.

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

// Bits of an ordinary number of the type, of one of many magnitudes.
inline std::uint64_t as_number(DType type, std::uint64_t bits) {
  switch (type) {
    case DType::kF16:
      return (bits & 0x83FF) | ((9 + (bits >> 40) % 10) << 10);
    case DType::kBF16:
      return (bits & 0x807F) | ((115 + (bits >> 40) % 24) << 7);
    case DType::kF32:
      return (bits & 0x807FFFFF) | ((115 + (bits >> 40) % 24) << 23);
    case DType::kF64:
      return (bits & 0x800FFFFFFFFFFFFF) | ((1000 + ((bits >> 52) & 0x7FF) % 40) << 52);
    default:
      return bits;
  }
}

// Random numbers of the type, which is a constant here: inputs are most of what some tests compute.
template <DType kType, typename Word>
void put_numbers(std::vector<std::byte>& bytes, std::uint64_t start) {
  for (std::size_t i = 0; (i + 1) * sizeof(Word) <= bytes.size(); ++i) {
    const auto bits = static_cast<Word>(as_number(kType, mixed(start + i * 0x9e3779b97f4a7c15u)));
    std::memcpy(bytes.data() + i * sizeof(Word), &bits, sizeof(Word));
  }
}

// The input of rank `rank`.
inline std::vector<std::byte> call_input(const CallShape& shape, Rank rank, std::size_t count) {
  std::vector<std::byte> bytes(count * dtype_bytes(shape.type));
  const std::uint64_t start = mixed(shape.seed * 8191 + static_cast<std::uint64_t>(rank) + 1);
  switch (shape.type) {
    case DType::kF16:
      put_numbers<DType::kF16, std::uint16_t>(bytes, start);
      break;
    case DType::kBF16:
      put_numbers<DType::kBF16, std::uint16_t>(bytes, start);
      break;
    case DType::kF32:
      put_numbers<DType::kF32, std::uint32_t>(bytes, start);
      break;
    case DType::kF64:
      put_numbers<DType::kF64, std::uint64_t>(bytes, start);
      break;
    default: {  // All bit patterns are integers.
      put_numbers<DType::kU8, std::uint64_t>(bytes, start);
      const std::uint64_t last = mixed(start - 1);
      const std::size_t rest = bytes.size() % sizeof(last);
      if (rest > 0) std::memcpy(bytes.data() + bytes.size() - rest, &last, rest);
    }
  }
  return bytes;
}

// Elements that `from` sends to `to` if blocks are unequal; often none.
inline std::size_t unequal_count(const CallShape& shape, Rank from, Rank to) {
  const std::uint64_t draw = mixed(shape.seed * 131 + static_cast<std::uint64_t>(from) * 1009 +
                                   static_cast<std::uint64_t>(to));
  return draw % 4 == 0 ? 0 : (draw >> 8) % (2 * shape.count + 1);
}

// all_gatherv sends the same to all.
inline std::vector<std::size_t> gather_counts(const CallShape& shape, int size) {
  std::vector<std::size_t> counts;
  for (Rank rank = 0; rank < size; ++rank) counts.push_back(unequal_count(shape, rank, 0));
  return counts;
}

inline double factor_of(Rank rank) { return 1.0 / (rank + 3); }

// Inputs and outputs of a call, for all ranks.
struct CallAnswer {
  std::vector<std::vector<std::byte>> inputs;  // By rank.
  std::vector<std::byte> reduced;              // For reductions: of the whole inputs.
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

// kernels_test tests the reduction itself; here it runs on all ranks' inputs at once.
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
  collectives::Reduction reduction{shape.type, shape.type, shape.reduction, size, {}};
  if (shape.reduction == ReduceOp::kPremulSum) reduction.factors = factors;
  std::byte* target = answer.reduced.data();
  reduce(reduction, ranges, sources, {&target, 1}, bytes / dtype_bytes(shape.type));
  return answer;
}

// The expected output of rank `self`.
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

}  // namespace ddp::test
