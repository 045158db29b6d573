#include "worker/checkpoint/tool/elements.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"

namespace ddp::checkpoint {
namespace {

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// A binary floating-point number in the style of IEEE 754. has_infinity = false: as F8_E4M3, in
// which an exponent of all ones is an ordinary number, except that a mantissa of all ones is NaN.
long double small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const unsigned mantissa_mask = (1u << mantissa_bits) - 1;
  const unsigned exponent_mask = (1u << exponent_bits) - 1;
  const unsigned mantissa = bits & mantissa_mask;
  const unsigned exponent = bits >> mantissa_bits & exponent_mask;
  const bool is_negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  long double value = 0;
  if (exponent == exponent_mask && (has_infinity || mantissa == mantissa_mask)) {
    value = mantissa == 0 ? std::numeric_limits<long double>::infinity()
                          : std::numeric_limits<long double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<long double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<long double>(mantissa | (mantissa_mask + 1)),
                       static_cast<int>(exponent) - bias - mantissa_bits);
  }
  return is_negative ? -value : value;
}

}  // namespace

long double element_value(TensorType type, const std::byte* bytes) {
  switch (type) {
    case TensorType::kBool:
      return load<std::uint8_t>(bytes) != 0 ? 1 : 0;
    case TensorType::kU8:
      return load<std::uint8_t>(bytes);
    case TensorType::kI8:
      return load<std::int8_t>(bytes);
    case TensorType::kF8E5M2:
      return small_float(load<std::uint8_t>(bytes), 5, 2, true);
    case TensorType::kF8E4M3:
      return small_float(load<std::uint8_t>(bytes), 4, 3, false);
    case TensorType::kI16:
      return load<std::int16_t>(bytes);
    case TensorType::kU16:
      return load<std::uint16_t>(bytes);
    case TensorType::kF16:
      return small_float(load<std::uint16_t>(bytes), 5, 10, true);
    case TensorType::kBF16:
      return small_float(load<std::uint16_t>(bytes), 8, 7, true);
    case TensorType::kI32:
      return load<std::int32_t>(bytes);
    case TensorType::kU32:
      return load<std::uint32_t>(bytes);
    case TensorType::kF32:
      return load<float>(bytes);
    case TensorType::kF64:
      return load<double>(bytes);
    case TensorType::kI64:
      return load<std::int64_t>(bytes);
    case TensorType::kU64:
      return load<std::uint64_t>(bytes);
  }
  DDP_CHECK(false, "tensor type {}", static_cast<int>(type));
  return 0;  // Unreachable; without optimization compilers do not see that.
}

TensorDifference compare_tensors(TensorType type, std::span<const std::byte> a,
                                 std::span<const std::byte> b) {
  DDP_CHECK(a.size() == b.size(), "{} and {} bytes", a.size(), b.size());
  TensorDifference difference;
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return difference;
  const std::size_t size = tensor_type_bytes(type);
  for (std::size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(a.data() + at, b.data() + at, size) == 0) continue;
    long double distance =
        std::fabs(element_value(type, a.data() + at) - element_value(type, b.data() + at));
    if (std::isnan(distance)) distance = std::numeric_limits<long double>::infinity();
    if (difference.elements++ == 0 || distance > difference.largest) {
      difference.largest = distance;
      difference.largest_at = at / size;
    }
  }
  return difference;
}

}  // namespace ddp::checkpoint
