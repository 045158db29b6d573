#include "worker/collectives/kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/base/check.h"

// One function per type and operation, compiled for several vector widths; the loader picks.
// Sanitizers do not work with that.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DDP_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DDP_VECTOR
#endif
#define DDP_INLINE __attribute__((always_inline)) inline

namespace ddp {
namespace {

constexpr std::size_t kBlockBytes =
    8192;  // The partial result of a block stays in the first-level cache.

struct Sum {
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
// NaN wins, and if both are equal the lower rank's value stays.
struct Min {
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return (a <= b || a != a) ? a : b;
  }
};
struct Max {
  template <typename T>
  static DDP_INLINE T apply(T a, T b) {
    return (a >= b || a != a) ? a : b;
  }
};

template <typename T, typename Op>
DDP_INLINE void combine_loop(void* target, const void* first, const void* second,
                             std::size_t count) {
  T* __restrict out = static_cast<T*>(target);
  const T* __restrict a = static_cast<const T*>(first);
  const T* __restrict b = static_cast<const T*>(second);
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::template apply<T>(a[i], b[i]);
}

template <typename T, typename Op>
DDP_INLINE void accumulate_loop(void* target, const void* source, std::size_t count) {
  T* __restrict out = static_cast<T*>(target);
  const T* __restrict in = static_cast<const T*>(source);
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::template apply<T>(out[i], in[i]);
}

struct Functions {
  void (*combine)(void* target, const void* first, const void* second, std::size_t count);
  void (*accumulate)(void* target, const void* source, std::size_t count);
};

#define DDP_DEFINE(T, Op, name)                                                            \
  DDP_VECTOR void combine_##name(void* target, const void* first, const void* second,      \
                                 std::size_t count) {                                      \
    combine_loop<T, Op>(target, first, second, count);                                     \
  }                                                                                        \
  DDP_VECTOR void accumulate_##name(void* target, const void* source, std::size_t count) { \
    accumulate_loop<T, Op>(target, source, count);                                         \
  }                                                                                        \
  constexpr Functions k_##name{combine_##name, accumulate_##name};
#define DDP_DEFINE_TYPE(T, name) \
  DDP_DEFINE(T, Sum, name##_sum) \
  DDP_DEFINE(T, Min, name##_min) \
  DDP_DEFINE(T, Max, name##_max)

DDP_DEFINE_TYPE(std::uint8_t, u8)
DDP_DEFINE_TYPE(std::int32_t, i32)
DDP_DEFINE_TYPE(std::int64_t, i64)
DDP_DEFINE_TYPE(float, f32)
DDP_DEFINE_TYPE(double, f64)

DDP_VECTOR void scale_f32(void* target, double factor, std::size_t count) {
  float* __restrict values = static_cast<float*>(target);
  const auto by = static_cast<float>(factor);
  for (std::size_t i = 0; i < count; ++i) values[i] *= by;
}

DDP_VECTOR void scale_f64(void* target, double factor, std::size_t count) {
  double* __restrict values = static_cast<double*>(target);
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

Functions pick(ReduceOp op, const Functions& sum, const Functions& min, const Functions& max) {
  if (op == ReduceOp::kMin) return min;
  if (op == ReduceOp::kMax) return max;
  return sum;
}

Functions functions_for(DType type, ReduceOp op) {
  switch (type) {
    case DType::kU8:
      return pick(op, k_u8_sum, k_u8_min, k_u8_max);
    case DType::kI32:
      return pick(op, k_i32_sum, k_i32_min, k_i32_max);
    case DType::kI64:
      return pick(op, k_i64_sum, k_i64_min, k_i64_max);
    case DType::kF32:
      return pick(op, k_f32_sum, k_f32_min, k_f32_max);
    case DType::kF64:
      return pick(op, k_f64_sum, k_f64_min, k_f64_max);
  }
  DDP_CHECK(false, "type {}", static_cast<int>(type));
  return {};
}

void scale(const Reduction& reduction, std::byte* target, std::size_t count) {
  const double factor = 1.0 / reduction.divisor;
  if (reduction.type == DType::kF32) {
    scale_f32(target, factor, count);
  } else {
    DDP_CHECK(reduction.type == DType::kF64, "average of type {}",
              static_cast<int>(reduction.type));
    scale_f64(target, factor, count);
  }
}

}  // namespace

void reduce(const Reduction& reduction, std::byte* target, std::byte* also,
            std::span<const std::byte* const> sources, std::size_t count) {
  DDP_CHECK(!sources.empty());
  const Functions functions = functions_for(reduction.type, reduction.op);
  const std::size_t element = dtype_bytes(reduction.type);
  const std::size_t block = kBlockBytes / element;
  const bool in_place = target == sources[0];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t size = std::min(block, count - begin);
    const std::size_t offset = begin * element;
    std::byte* out = target + offset;
    std::size_t next = 1;
    if (!in_place && sources.size() > 1) {
      functions.combine(out, sources[0] + offset, sources[1] + offset, size);
      next = 2;
    } else if (!in_place) {
      std::memcpy(out, sources[0] + offset, size * element);
    }
    for (; next < sources.size(); ++next) functions.accumulate(out, sources[next] + offset, size);
    if (reduction.op == ReduceOp::kAvg && reduction.divisor > 1) scale(reduction, out, size);
    if (also != nullptr) std::memcpy(also + offset, out, size * element);
  }
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

}  // namespace ddp
