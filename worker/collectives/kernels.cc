#include "worker/collectives/kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/base/check.h"
#include "worker/collectives/kernel_table.h"

namespace ddp::collectives {
namespace {

// Intermediate values are computed block by block, so that they stay in the first-level cache.
constexpr std::size_t kBlockBytes = 4096;
// Enough for 2^15 sources. Only those that a tree needs are touched.
constexpr std::size_t kBlocks = 16;

constexpr std::size_t index_of(DType type) { return static_cast<std::size_t>(type); }

ReduceOp::Kind loops_of(ReduceOp op) {
  const bool sum = op == ReduceOp::kAvg || op.kind() == ReduceOp::kPremulSum;
  return sum ? ReduceOp::kSum : op.kind();
}

double scale_of(const Reduction& reduction, DType accumulator) {
  if (reduction.op != ReduceOp::kAvg || reduction.divisor <= 1) return 1.0;
  if (accumulator == DType::kF32) return 1.0F / static_cast<float>(reduction.divisor);
  return 1.0 / reduction.divisor;
}

// One call of reduce(): walks the tree once per block of elements.
class Walk {
 public:
  Walk(const KernelTable& table, const Reduction& reduction, std::span<const RankRange> ranges,
       std::span<const std::byte* const> sources, std::span<std::byte* const> targets)
      : reduction_(reduction),
        ranges_(ranges),
        sources_(sources),
        targets_(targets),
        accumulator_(accumulator_of(reduction.in)),
        fused_half_(is_half(reduction.in) && reduction.in == reduction.out &&
                    reduction.factors.empty() && sources.size() <= kMaxWidth),
        scale_(scale_of(reduction, accumulator_)),
        table_(table),
        kernels_(table.combine[index_of(accumulator_)][loops_of(reduction.op)]),
        half_kernels_(table.combine[index_of(reduction.in)][loops_of(reduction.op)]) {}

  void run(std::size_t count);

 private:
  // Consecutive sources: those with the indices first, ..., last - 1.
  struct Node {
    std::size_t first;
    std::size_t last;
    std::size_t size() const { return last - first; }
  };
  // Sources in the order in which one kernel combines a whole node; width 0 if none does.
  struct Fused {
    std::size_t width = 0;
    std::array<std::size_t, kMaxWidth> sources{};
  };
  using Block = std::array<std::byte, kBlockBytes>;

  std::size_t middle(Node node) const;
  bool full(Node node) const;
  Fused fused(Node node, const CombineKernels& kernels) const;
  bool converts() const { return is_half(reduction_.in) || !reduction_.factors.empty(); }

  const std::byte* value_of(Node node, std::size_t depth);
  const std::byte* leaf(std::size_t source, std::byte* block);
  bool combine_fused(Node node, const CombineKernels& kernels, std::byte* first, std::byte* second,
                     double scale);
  void combine(Node node, std::size_t depth, std::byte* first, std::byte* second, double scale);
  void block();

  const Reduction& reduction_;
  std::span<const RankRange> ranges_;
  std::span<const std::byte* const> sources_;
  std::span<std::byte* const> targets_;
  DType accumulator_;
  bool fused_half_;
  double scale_;
  const KernelTable& table_;
  const CombineKernels& kernels_;
  const CombineKernels& half_kernels_;
  // The current block, in elements.
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
  alignas(64) std::array<Block, kBlocks> blocks_;  // Not initialised: written before it is read.
};

// The index of the source at which the second half of a node begins.
std::size_t Walk::middle(Node node) const {
  const int rank = tree_middle(ranges_[node.first].begin, ranges_[node.last - 1].end);
  const auto begin = ranges_.begin() + static_cast<std::ptrdiff_t>(node.first) + 1;
  const auto end = ranges_.begin() + static_cast<std::ptrdiff_t>(node.last);
  const auto found = std::lower_bound(
      begin, end, rank, [](const RankRange& range, int value) { return range.begin < value; });
  DDP_CHECK(found != end && found->begin == rank,
            "no source begins with rank {}, where the tree over ranks {}..{} divides", rank,
            ranges_[node.first].begin, ranges_[node.last - 1].end - 1);
  return static_cast<std::size_t>(found - ranges_.begin());
}

// Whether a node's sources, whose number is a power of two, are the leaves of a full tree.
bool Walk::full(Node node) const {
  if (node.size() == 1) return true;
  const std::size_t half = middle(node);
  return half - node.first == node.size() / 2 && full({node.first, half}) &&
         full({half, node.last});
}

Walk::Fused Walk::fused(Node node, const CombineKernels& kernels) const {
  Fused result;
  const std::size_t width = node.size();
  if (width > kMaxWidth || kernels[width][0] == nullptr) return result;
  if (width != 3 && !full(node)) return result;
  // a + (b + c) and (b + c) + a have the same bits.
  const std::size_t begin = width == 3 && middle(node) == node.first + 1 ? 1 : 0;
  for (std::size_t i = 0; i < width; ++i) result.sources[i] = node.first + (begin + i) % width;
  result.width = width;
  return result;
}

bool Walk::combine_fused(Node node, const CombineKernels& kernels, std::byte* first,
                         std::byte* second, double scale) {
  const Fused plan = fused(node, kernels);
  if (plan.width == 0) return false;
  std::array<const std::byte*, kMaxWidth> from{};
  const std::size_t offset = begin_ * dtype_bytes(reduction_.in);
  for (std::size_t i = 0; i < plan.width; ++i) from[i] = sources_[plan.sources[i]] + offset;
  kernels[plan.width][second == nullptr ? 0 : 1](first, second, from.data(), size_, scale);
  return true;
}

// A source's elements in the accumulator type and scaled; converted into `block` if necessary.
const std::byte* Walk::leaf(std::size_t source, std::byte* block) {
  const std::byte* data = sources_[source] + begin_ * dtype_bytes(reduction_.in);
  if (is_half(reduction_.in)) {
    table_.widen[index_of(reduction_.in)](block, data, size_);
    data = block;
  }
  if (!reduction_.factors.empty()) {
    kernels_[1][0](block, nullptr, &data, size_, reduction_.factors[source]);
    data = block;
  }
  return data;
}

// A node's value, in its source or in blocks_[depth]; does not use the blocks before that.
const std::byte* Walk::value_of(Node node, std::size_t depth) {
  DDP_CHECK(depth < kBlocks, "{} sources", sources_.size());
  std::byte* block = blocks_[depth].data();
  if (node.size() == 1) return leaf(node.first, block);
  combine(node, depth, block, nullptr, 1.0);
  return block;
}

void Walk::combine(Node node, std::size_t depth, std::byte* first, std::byte* second,
                   double scale) {
  if (!converts() && combine_fused(node, kernels_, first, second, scale)) return;
  std::array<const std::byte*, 2> from{};
  std::size_t width = 1;
  if (node.size() == 1) {
    from[0] = leaf(node.first, blocks_[depth].data());
  } else {
    const std::size_t half = middle(node);
    from = {value_of({node.first, half}, depth), value_of({half, node.last}, depth + 1)};
    width = 2;
  }
  kernels_[width][second == nullptr ? 0 : 1](first, second, from.data(), size_, scale);
}

// Computes the current block and stores it in all targets.
void Walk::block() {
  const Node root{0, sources_.size()};
  const std::size_t offset = begin_ * dtype_bytes(reduction_.out);
  std::byte* first = targets_[0] + offset;
  std::byte* second = targets_.size() > 1 ? targets_[1] + offset : nullptr;
  std::size_t stored = std::min<std::size_t>(targets_.size(), 2);
  if (accumulator_ == reduction_.out) {
    combine(root, 0, first, second, scale_);
  } else if (!fused_half_ || !combine_fused(root, half_kernels_, first, second, scale_)) {
    std::byte* result = blocks_[0].data();
    combine(root, 0, result, nullptr, scale_);
    table_.narrow[index_of(reduction_.out)](first, result, size_);
    stored = 1;
  }
  for (; stored < targets_.size(); ++stored) {
    std::memcpy(targets_[stored] + offset, first, size_ * dtype_bytes(reduction_.out));
  }
}

void Walk::run(std::size_t count) {
  // One kernel from all sources to all targets needs no blocks.
  const Node root{0, sources_.size()};
  const bool direct = !converts() && accumulator_ == reduction_.out;
  const bool one_pass =
      targets_.size() <= 2 && ((direct && fused(root, kernels_).width > 0) ||
                               (fused_half_ && fused(root, half_kernels_).width > 0));
  const std::size_t step = one_pass ? count : kBlockBytes / dtype_bytes(accumulator_);
  for (begin_ = 0; begin_ < count; begin_ += size_) {
    size_ = std::min(step, count - begin_);
    block();
  }
}

void check(const Reduction& reduction, std::span<const RankRange> ranges,
           std::span<const std::byte* const> sources, std::span<std::byte* const> targets) {
  DDP_CHECK(!sources.empty() && ranges.size() == sources.size() && !targets.empty(),
            "{} sources, {} ranges, {} targets", sources.size(), ranges.size(), targets.size());
  DDP_CHECK(valid(reduction.in, reduction.op.kind()), "type {}, reduction {}",
            static_cast<int>(reduction.in), static_cast<int>(reduction.op.kind()));
  const bool widens = is_half(reduction.in) && reduction.out == DType::kF32;
  const bool narrows = is_half(reduction.out) && reduction.in == DType::kF32;
  DDP_CHECK(reduction.in == reduction.out || widens || narrows, "type {} to type {}",
            static_cast<int>(reduction.in), static_cast<int>(reduction.out));
  DDP_CHECK(reduction.factors.empty() || (reduction.factors.size() == sources.size() &&
                                          reduction.op.kind() == ReduceOp::kPremulSum),
            "{} factors of {} sources", reduction.factors.size(), sources.size());
}

}  // namespace

std::span<const KernelTable* const> kernel_tables() {
#if defined(__x86_64__)
  static constexpr std::array<const KernelTable*, 3> kTables{&kBaselineKernels, &kAvx2Kernels,
                                                             &kAvx512Kernels};
  static const std::size_t usable = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return std::size_t{1};
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? std::size_t{3} : std::size_t{2};
  }();
  return std::span(kTables).first(usable);
#else
  static constexpr std::array<const KernelTable*, 1> kTables{&kBaselineKernels};
  return kTables;
#endif
}

void reduce_with(const KernelTable& table, const Reduction& reduction,
                 std::span<const RankRange> ranges, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> targets, std::size_t count) {
  check(reduction, ranges, sources, targets);
  Walk walk(table, reduction, ranges, sources, targets);
  walk.run(count);
}

void reduce(const Reduction& reduction, std::span<const RankRange> ranges,
            std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
            std::size_t count) {
  reduce_with(*kernel_tables().back(), reduction, ranges, sources, targets, count);
}

#if defined(__x86_64__)
FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) {
  constexpr unsigned kDefault =
      0x1F80;  // All exceptions masked, nearest, no flushing of denormals.
  if (saved_ != kDefault) _mm_setcsr(kDefault);
}
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(saved_); }
#else
FloatEnvironment::FloatEnvironment() = default;
FloatEnvironment::~FloatEnvironment() = default;
#endif

}  // namespace ddp::collectives
