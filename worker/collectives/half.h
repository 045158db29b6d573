#pragma once

#include <cstdint>

// Conversions between 32-bit floats and the two 16-bit formats, in integer arithmetic, so that all
// processors give the same bits. Conversions to 16 bits round to nearest, ties to even; NaN becomes
// the format's quiet NaN without a sign.
//
// Always inlined: files compiled for different processors include them, and must not share a copy.
namespace ddp::collectives {

#define DDP_HALF_INLINE __attribute__((always_inline)) inline constexpr

DDP_HALF_INLINE float f32_of_bf16(std::uint16_t value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}

DDP_HALF_INLINE std::uint16_t bf16_of_f32(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x7FC0U : rounded);
}

// Exact for everything but NaN, which keeps its sign and payload.
DDP_HALF_INLINE float f32_of_f16(std::uint16_t value) {
  const std::uint32_t sign = (value & 0x8000U) << 16;
  const std::uint32_t magnitude = value & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // Infinity and NaN.
    return __builtin_bit_cast(float, sign | 0x7F800000U | (magnitude << 13));
  }
  if (magnitude >= 0x0400U) {  // Normal: the exponent's bias grows by 127 - 15.
    return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112U << 23)));
  }
  // Denormal: units of 2^-24, a normal float or zero.
  const float unsigned_value = static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24F;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, unsigned_value));
}

DDP_HALF_INLINE std::uint16_t f16_of_f32(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return 0x7E00U;
  if (magnitude >= 0x477FF000U)  // From 65520 on, infinity is nearest.
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude >= 0x38800000U) {  // From 2^-14 on, a normal number; a carry grows the exponent.
    const std::uint32_t rebiased = magnitude - (112U << 23);
    return static_cast<std::uint16_t>(sign | ((rebiased + 0xFFFU + ((rebiased >> 13) & 1U)) >> 13));
  }
  if (magnitude < 0x33000000U) return static_cast<std::uint16_t>(sign);  // Below 2^-25: zero.
  // A denormal counts units of 2^-24: shift the significand there and round what falls out.
  const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t shift = 126U - (magnitude >> 23);
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t rest = significand & ((1U << shift) - 1U);
  const std::uint32_t tie = 1U << (shift - 1U);
  const std::uint32_t up = rest > tie || (rest == tie && (kept & 1U) != 0) ? 1U : 0U;
  return static_cast<std::uint16_t>(sign | (kept + up));
}

#undef DDP_HALF_INLINE

}  // namespace ddp::collectives
