#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "worker/collectives/half.h"
#include "worker/collectives/kernel_table.h"

#define DDP_INLINE __attribute__((always_inline)) inline
#if defined(__clang__)
#define DDP_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define DDP_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// The loops behind KernelTable. Included by one source file per kind of processor, each compiled
// with that processor's instructions; so nothing here may have external linkage, not even a
// standard library function; otherwise another file's calls could end up in this file's copy.
namespace ddp::collectives {
namespace {

template <typename T>
using Unaligned [[gnu::aligned(1), gnu::may_alias]] = T;

template <typename T>
constexpr bool kFloating = std::is_floating_point_v<T>;
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

// The type of the elements in memory and the type they are combined in.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static DDP_INLINE T load(T stored) { return stored; }
  static DDP_INLINE T store(T value) { return value; }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static DDP_INLINE float load(std::uint16_t stored) { return f32_of_bf16(stored); }
  static DDP_INLINE std::uint16_t store(float value) { return bf16_of_f32(value); }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static DDP_INLINE float load(std::uint16_t stored) { return f32_of_f16(stored); }
  static DDP_INLINE std::uint16_t store(float value) { return f16_of_f32(value); }
};

struct Sum {
  static constexpr bool kScaled = true;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return static_cast<T>(a + b);  // Integers here are always unsigned.
  }
};
struct Prod {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
};
// NaN wins, whichever side it is on, and zeros are ordered by their sign.
struct Min {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    const T lower = a < b ? a : b;
    if constexpr (kFloating<T>) {
      const auto both = __builtin_bit_cast(BitsOf<T>, a) | __builtin_bit_cast(BitsOf<T>, b);
      const T ordered = a == b ? __builtin_bit_cast(T, both) : lower;
      return a != a ? a : ordered;
    } else {
      return lower;
    }
  }
};
struct Max {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    const T higher = a > b ? a : b;
    if constexpr (kFloating<T>) {
      const auto both = __builtin_bit_cast(BitsOf<T>, a) & __builtin_bit_cast(BitsOf<T>, b);
      const T ordered = a == b ? __builtin_bit_cast(T, both) : higher;
      return a != a ? a : ordered;
    } else {
      return higher;
    }
  }
};
struct Band {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  static constexpr bool kScaled = false;
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// Which of two NaNs a sum keeps depends on how the compiler orders the operands, so every NaN
// becomes the same quiet one.
template <typename T, typename Op>
DDP_INLINE T finished(T value, T scale) {
  if constexpr (kFloating<T>) {
    if constexpr (Op::kScaled) value *= scale;
    constexpr BitsOf<T> kQuiet = sizeof(T) == 4 ? static_cast<BitsOf<T>>(0x7FC00000U)
                                                : static_cast<BitsOf<T>>(0x7FF8000000000000U);
    return value != value ? __builtin_bit_cast(T, kQuiet) : value;
  } else {
    return value;
  }
}

// All loads of an element come before its stores, and elements do not depend on each other. So a
// target may also be a source.
template <typename Format, typename Op, int Width, int Targets>
void combine(std::byte* first, std::byte* second, const std::byte* const* sources,
             std::size_t count, double scale) {
  using Stored = Unaligned<typename Format::Stored>;
  using T = typename Format::Value;
  auto* out = reinterpret_cast<Stored*>(first);
  auto* also = reinterpret_cast<Stored*>(second);
  const auto in = [&](int k) {
    return reinterpret_cast<const Stored*>(sources[k < Width ? k : 0]);
  };
  const Stored *s0 = in(0), *s1 = in(1), *s2 = in(2), *s3 = in(3);
  const Stored *s4 = in(4), *s5 = in(5), *s6 = in(6), *s7 = in(7);
  const T by = static_cast<T>(scale);
  const auto pair = [](const Stored* a, const Stored* b, std::size_t i) {
    return Op::template apply<T>(Format::load(a[i]), Format::load(b[i]));
  };
  DDP_INDEPENDENT_ITERATIONS
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    if constexpr (Width == 1) value = Format::load(s0[i]);
    if constexpr (Width >= 2) value = pair(s0, s1, i);
    if constexpr (Width == 3) value = Op::template apply<T>(value, Format::load(s2[i]));
    if constexpr (Width >= 4) value = Op::template apply<T>(value, pair(s2, s3, i));
    if constexpr (Width == 8) {
      value = Op::template apply<T>(value, Op::template apply<T>(pair(s4, s5, i), pair(s6, s7, i)));
    }
    const typename Format::Stored result = Format::store(finished<T, Op>(value, by));
    out[i] = result;
    if constexpr (Targets == 2) also[i] = result;
  }
}

template <typename Format, typename Op, int Width>
constexpr void add_width(CombineKernels& kernels) {
  kernels[Width] = {combine<Format, Op, Width, 1>, combine<Format, Op, Width, 2>};
}

template <typename Format, typename Op>
constexpr CombineKernels pairs() {
  CombineKernels kernels{};
  add_width<Format, Op, 1>(kernels);
  add_width<Format, Op, 2>(kernels);
  return kernels;
}

template <typename Format>
constexpr CombineKernels sums() {
  CombineKernels kernels = pairs<Format, Sum>();
  add_width<Format, Sum, 3>(kernels);
  add_width<Format, Sum, 4>(kernels);
  add_width<Format, Sum, 8>(kernels);
  return kernels;
}

template <typename Format>
void widen(std::byte* f32, const std::byte* half, std::size_t count) {
  auto* out = reinterpret_cast<Unaligned<float>*>(f32);
  const auto* in = reinterpret_cast<const Unaligned<std::uint16_t>*>(half);
  DDP_INDEPENDENT_ITERATIONS
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::load(in[i]);
}

template <typename Format>
void narrow(std::byte* half, const std::byte* f32, std::size_t count) {
  auto* out = reinterpret_cast<Unaligned<std::uint16_t>*>(half);
  const auto* in = reinterpret_cast<const Unaligned<float>*>(f32);
  DDP_INDEPENDENT_ITERATIONS
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::store(in[i]);
}

#if defined(__F16C__)
// Converts eight f16 elements to floats, and back with the results of f16_of_f32. The compiler does
// not vectorise these conversions by itself, unlike those of bf16.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kLaneBytes = kLanes * sizeof(std::uint16_t);

DDP_INLINE __m256 load_f16(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// The instruction alone would keep a NaN's sign and payload.
DDP_INLINE __m128i f16_of(__m256 value) {
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_cvtps_ph(_mm256_blendv_ps(value, quiet, is_nan),
                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <int Width, int Targets>
void sum_f16(std::byte* first, std::byte* second, const std::byte* const* sources,
             std::size_t count, double scale) {
  const std::byte* s[Width];
  for (int k = 0; k < Width; ++k) s[k] = sources[k];
  const __m256 by = _mm256_set1_ps(static_cast<float>(scale));
  const std::size_t end = count / kLanes * kLaneBytes;
  const auto pair = [&](int k, std::size_t at) {
    return load_f16(s[k] + at) + load_f16(s[k + 1] + at);
  };
  for (std::size_t at = 0; at < end; at += kLaneBytes) {
    __m256 value = load_f16(s[0] + at);
    if constexpr (Width >= 2) value += load_f16(s[1] + at);
    if constexpr (Width == 3) value += load_f16(s[2] + at);
    if constexpr (Width >= 4) value += pair(2, at);
    if constexpr (Width == 8) value += pair(4, at) + pair(6, at);
    const __m128i result = f16_of(value * by);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(first + at), result);
    if constexpr (Targets == 2) _mm_storeu_si128(reinterpret_cast<__m128i*>(second + at), result);
  }
  for (int k = 0; k < Width; ++k) s[k] += end;
  std::byte* const rest = Targets == 2 ? second + end : nullptr;
  combine<Float16, Sum, Width, Targets>(first + end, rest, s, count % kLanes, scale);
}

template <int Width>
constexpr void add_f16(CombineKernels& kernels) {
  kernels[Width] = {sum_f16<Width, 1>, sum_f16<Width, 2>};
}

constexpr CombineKernels f16_sums() {
  CombineKernels kernels{};
  add_f16<1>(kernels);
  add_f16<2>(kernels);
  add_f16<3>(kernels);
  add_f16<4>(kernels);
  add_f16<8>(kernels);
  return kernels;
}

void widen_f16(std::byte* f32, const std::byte* half, std::size_t count) {
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    _mm256_storeu_ps(reinterpret_cast<float*>(f32 + i * sizeof(float)),
                     load_f16(half + i * sizeof(std::uint16_t)));
  }
  widen<Float16>(f32 + whole * sizeof(float), half + whole * sizeof(std::uint16_t), count - whole);
}

void narrow_f16(std::byte* half, const std::byte* f32, std::size_t count) {
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(f32 + i * sizeof(float)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half + i * sizeof(std::uint16_t)), f16_of(value));
  }
  narrow<Float16>(half + whole * sizeof(std::uint16_t), f32 + whole * sizeof(float), count - whole);
}
#else
// Without these instructions the conversions dominate a reduction, fused or not.
constexpr CombineKernels f16_sums() { return {}; }
constexpr auto widen_f16 = widen<Float16>;
constexpr auto narrow_f16 = narrow<Float16>;
#endif

using OpKernels = std::array<CombineKernels, ReduceOp::kKinds>;

template <typename T>
constexpr OpKernels integer_kernels() {
  using Bits = Plain<std::make_unsigned_t<T>>;  // So that sums and products wrap.
  OpKernels ops{};
  ops[ReduceOp::kSum] = sums<Bits>();
  ops[ReduceOp::kProd] = pairs<Bits, Prod>();
  ops[ReduceOp::kMin] = pairs<Plain<T>, Min>();
  ops[ReduceOp::kMax] = pairs<Plain<T>, Max>();
  ops[ReduceOp::kBand] = pairs<Bits, Band>();
  ops[ReduceOp::kBor] = pairs<Bits, Bor>();
  ops[ReduceOp::kBxor] = pairs<Bits, Bxor>();
  return ops;
}

template <typename T>
constexpr OpKernels floating_kernels() {
  OpKernels ops{};
  ops[ReduceOp::kSum] = sums<Plain<T>>();
  ops[ReduceOp::kProd] = pairs<Plain<T>, Prod>();
  ops[ReduceOp::kMin] = pairs<Plain<T>, Min>();
  ops[ReduceOp::kMax] = pairs<Plain<T>, Max>();
  return ops;
}

constexpr std::size_t index_of(DType type) { return static_cast<std::size_t>(type); }

constexpr KernelTable make_table(const char* name) {
  KernelTable table;
  table.name = name;
  table.combine[index_of(DType::kU8)] = integer_kernels<std::uint8_t>();
  table.combine[index_of(DType::kI8)] = integer_kernels<std::int8_t>();
  table.combine[index_of(DType::kI32)] = integer_kernels<std::int32_t>();
  table.combine[index_of(DType::kI64)] = integer_kernels<std::int64_t>();
  table.combine[index_of(DType::kF32)] = floating_kernels<float>();
  table.combine[index_of(DType::kF64)] = floating_kernels<double>();
  table.combine[index_of(DType::kF16)][ReduceOp::kSum] = f16_sums();
  table.combine[index_of(DType::kBF16)][ReduceOp::kSum] = sums<BFloat16>();
  table.widen[index_of(DType::kF16)] = widen_f16;
  table.widen[index_of(DType::kBF16)] = widen<BFloat16>;
  table.narrow[index_of(DType::kF16)] = narrow_f16;
  table.narrow[index_of(DType::kBF16)] = narrow<BFloat16>;
  return table;
}

}  // namespace
}  // namespace ddp::collectives

#undef DDP_INLINE
