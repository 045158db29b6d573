#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

// The 16-bit formats by their definition, slowly and in double; half.h must agree with this.
namespace ddp::test {

struct HalfFormat {
  int mantissa_bits;
  int bias;
};
inline constexpr HalfFormat kFloat16{10, 15};
inline constexpr HalfFormat kBFloat16{7, 127};

inline std::uint32_t infinity(const HalfFormat& format) {
  return 0x7FFFU >> format.mantissa_bits << format.mantissa_bits;
}

inline std::uint16_t quiet_nan(const HalfFormat& format) {
  return static_cast<std::uint16_t>(infinity(format) | (1U << (format.mantissa_bits - 1)));
}

// Value of the bits without a sign, as though the largest exponent were a number like the others.
inline double magnitude_of(const HalfFormat& format, std::uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> format.mantissa_bits);
  const std::uint32_t fraction = bits & ((1U << format.mantissa_bits) - 1);
  const std::uint32_t hidden = exponent > 0 ? 1U << format.mantissa_bits : 0U;
  return std::ldexp(static_cast<double>(fraction + hidden),
                    std::max(exponent, 1) - format.bias - format.mantissa_bits);
}

inline double value_of(const HalfFormat& format, std::uint16_t bits) {
  const std::uint32_t unsigned_bits = bits & 0x7FFFU;
  double value = magnitude_of(format, unsigned_bits);
  if (unsigned_bits == infinity(format)) value = std::numeric_limits<double>::infinity();
  if (unsigned_bits > infinity(format)) return std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000U) != 0 ? -value : value;
}

// The format's value next to `value`; of two, the one whose bits are even.
inline std::uint16_t nearest(const HalfFormat& format, double value) {
  if (std::isnan(value)) return quiet_nan(format);
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double wanted = std::fabs(value);
  std::uint32_t low = 0;  // The largest bits whose value is not above.
  std::uint32_t high = infinity(format);
  while (low + 1 < high) {
    const std::uint32_t middle = (low + high) / 2;
    (magnitude_of(format, middle) <= wanted ? low : high) = middle;
  }
  const double below = wanted - magnitude_of(format, low);
  const double above = magnitude_of(format, low + 1) - wanted;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (low + (up ? 1 : 0)));
}

}  // namespace ddp::test
