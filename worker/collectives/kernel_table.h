#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/collectives/kernels.h"

// The loops of reduce(), once per kind of processor. For kernels.cc and its test.
namespace ddp::collectives {

// Combines `Width` sources of one type in the shape of a full tree (three: the first two, then the
// third) and stores the result at `first` and, for kernels with two targets, at `second`. Sums are
// multiplied by `scale` before they are stored. Both targets may be sources.
using CombineKernel = void (*)(std::byte* first, std::byte* second, const std::byte* const* sources,
                               std::size_t count, double scale);

inline constexpr std::size_t kMaxWidth = 8;

// Kernels of one type and operation, by width and by the number of targets minus one; null if there
// is none. Widths 1 and 2 always exist; a width of 1 copies.
using CombineKernels = std::array<std::array<CombineKernel, 2>, kMaxWidth + 1>;

struct KernelTable {
  const char* name = nullptr;
  // Sums also stand for averages and scaled sums. Half types have only sums, and f16 on processors
  // without conversions has nothing; the rest goes through `widen` and `narrow`.
  std::array<std::array<CombineKernels, ReduceOp::kKinds>, kDTypes> combine{};
  // Convert a half type to f32 and back, by DType; null for other types.
  std::array<void (*)(std::byte* f32, const std::byte* half, std::size_t count), kDTypes> widen{};
  std::array<void (*)(std::byte* half, const std::byte* f32, std::size_t count), kDTypes> narrow{};
};

// The tables of this build that this processor can run, the fastest last. All give the same bits.
std::span<const KernelTable* const> kernel_tables();

// reduce() with the given table.
void reduce_with(const KernelTable& table, const Reduction& reduction,
                 std::span<const RankRange> ranges, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> targets, std::size_t count);

extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace ddp::collectives
