#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/unit/worker/half_reference.h"
#include "worker/collectives/kernel_table.h"
#include "worker/collectives/operation.h"

// The expected results of reduce(), one element at a time, and inputs that expose differences.
namespace ddp::test {

// A type as the tests see it: Stored in memory, Value in arithmetic.
template <DType Type, typename S, typename V = S>
struct Element {
  static constexpr DType kType = Type;
  using Stored = S;
  using Value = V;
  static V load(S stored) {
    if constexpr (Type == DType::kF16) return static_cast<V>(value_of(kFloat16, stored));
    if constexpr (Type == DType::kBF16) return static_cast<V>(value_of(kBFloat16, stored));
    return static_cast<V>(stored);
  }
  static S store(V value) {
    if constexpr (Type == DType::kF16) return nearest(kFloat16, value);
    if constexpr (Type == DType::kBF16) return nearest(kBFloat16, value);
    return static_cast<S>(value);
  }
};
using U8 = Element<DType::kU8, std::uint8_t>;
using I8 = Element<DType::kI8, std::int8_t>;
using I32 = Element<DType::kI32, std::int32_t>;
using I64 = Element<DType::kI64, std::int64_t>;
using F16 = Element<DType::kF16, std::uint16_t, float>;
using BF16 = Element<DType::kBF16, std::uint16_t, float>;
using F32 = Element<DType::kF32, float>;
using F64 = Element<DType::kF64, double>;

template <typename Body>
void for_each_element(Body&& body) {
  body(U8{});
  body(I8{});
  body(I32{});
  body(I64{});
  body(F16{});
  body(BF16{});
  body(F32{});
  body(F64{});
}

inline constexpr ReduceOp::Kind kKinds[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProd,
                                            ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                                            ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};

template <typename T>
T quiet(T value) {
  return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <typename T>
T combine_floating(ReduceOp::Kind kind, T a, T b) {
  if (kind == ReduceOp::kMin || kind == ReduceOp::kMax) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    const bool a_is_less = a < b || (a == b && std::signbit(a));
    return a_is_less == (kind == ReduceOp::kMin) ? a : b;
  }
  // Volatile, so that the compiler can neither reorder nor widen the definition.
  volatile T result = a;
  if (kind == ReduceOp::kProd) {
    result = result * b;
  } else {
    result = result + b;
  }
  return quiet<T>(result);
}

template <typename T>
T combine_integers(ReduceOp::Kind kind, T a, T b) {
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (kind) {
    case ReduceOp::kProd:
      return static_cast<T>(x * y);
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kBand:
      return static_cast<T>(x & y);
    case ReduceOp::kBor:
      return static_cast<T>(x | y);
    case ReduceOp::kBxor:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

// Of the values of ranks 0, 1, ...; the recursion is written down anew, not taken from
// tree_order.h.
template <typename T>
T tree_of(ReduceOp::Kind kind, std::span<const T> values) {
  if (values.size() == 1) return values[0];
  std::size_t half = 1;
  while (2 * half < values.size()) half *= 2;
  const T a = tree_of(kind, values.first(half));
  const T b = tree_of(kind, values.subspan(half));
  if constexpr (std::is_floating_point_v<T>) {
    return combine_floating(kind, a, b);
  } else {
    return combine_integers(kind, a, b);
  }
}

// Element values of all ranks, the factors of a scaled sum (or none), the divisor of an average.
template <typename E>
typename E::Stored expected_of(ReduceOp::Kind kind, std::vector<typename E::Value> values,
                               std::span<const double> factors, int divisor) {
  using T = typename E::Value;
  if constexpr (std::is_floating_point_v<T>) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      volatile T product = values[i] * static_cast<T>(factors[i]);
      values[i] = product;
    }
  }
  T result = tree_of<T>(kind, values);
  if constexpr (std::is_floating_point_v<T>) {
    if (kind == ReduceOp::kAvg && divisor > 0) {
      volatile T reciprocal = T{1} / static_cast<T>(divisor);
      result = result * reciprocal;
    }
    result = quiet(result);
  }
  return E::store(result);
}

// Numbers of very different size, and now and then a NaN with some payload, an infinity, a zero of
// either sign or a denormal. Integers: any bits.
template <typename E>
typename E::Stored random_element(std::mt19937_64& random) {
  using S = typename E::Stored;
  if constexpr (std::is_floating_point_v<S>) {
    using Bits = std::conditional_t<sizeof(S) == 4, std::uint32_t, std::uint64_t>;
    const std::uint64_t draw = random();
    const S sign = (draw & 1) != 0 ? S{-1} : S{1};
    switch ((draw >> 1) % 256) {
      case 0:  // NaN of any payload and sign.
        return std::bit_cast<S>(
            static_cast<Bits>(std::bit_cast<Bits>(std::numeric_limits<S>::infinity()) |
                              (static_cast<Bits>(draw >> 20) & 0xFFFF) |
                              (static_cast<Bits>(draw & 1) << (sizeof(S) * 8 - 1)) | 1));
      case 1:
        return sign * std::numeric_limits<S>::infinity();
      case 2:
      case 3:
      case 4:
      case 5:
        return sign * S{0};
      case 6:
      case 7:
        return sign * static_cast<S>(draw >> 50) * std::numeric_limits<S>::denorm_min();
      default:
        return sign *
               std::ldexp(static_cast<S>(draw >> 30) / S{3}, static_cast<int>(draw % 40) - 60);
    }
  } else {
    return static_cast<S>(random());
  }
}

// Memory at an odd address, or at another one that the element type would not choose.
template <typename S>
class Elements {
 public:
  Elements(std::size_t count, std::size_t shift) : bytes_(count * sizeof(S) + 64), shift_(shift) {}
  std::byte* data() { return bytes_.data() + shift_; }
  const std::byte* data() const { return bytes_.data() + shift_; }
  S get(std::size_t i) const {
    S value;
    std::memcpy(&value, data() + i * sizeof(S), sizeof(S));
    return value;
  }
  void set(std::size_t i, S value) { std::memcpy(data() + i * sizeof(S), &value, sizeof(S)); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t shift_;
};

template <typename E>
std::vector<Elements<typename E::Stored>> inputs_of(std::size_t ranks, std::size_t count,
                                                    std::mt19937_64& random) {
  std::vector<Elements<typename E::Stored>> inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(count, random() % 17);
    for (std::size_t i = 0; i < count; ++i) inputs.back().set(i, random_element<E>(random));
  }
  return inputs;
}

template <typename E>
Elements<typename E::Stored> expected_of(ReduceOp::Kind kind,
                                         const std::vector<Elements<typename E::Stored>>& inputs,
                                         std::size_t count, std::span<const double> factors,
                                         int divisor) {
  Elements<typename E::Stored> result(count, 0);
  std::vector<typename E::Value> values(inputs.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      values[rank] = E::load(inputs[rank].get(i));
    }
    result.set(i, expected_of<E>(kind, values, factors, divisor));
  }
  return result;
}

inline std::vector<RankRange> ranks_of(std::size_t count) {
  std::vector<RankRange> ranges;
  for (int rank = 0; rank < static_cast<int>(count); ++rank) ranges.push_back({rank, rank + 1});
  return ranges;
}

template <typename S>
std::vector<const std::byte*> sources_of(const std::vector<Elements<S>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const Elements<S>& input : inputs) sources.push_back(input.data());
  return sources;
}

// The first element that differs in a bit, or `count`.
template <typename S>
std::size_t first_difference(const Elements<S>& a, const Elements<S>& b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(a.data() + i * sizeof(S), b.data() + i * sizeof(S), sizeof(S)) != 0) return i;
  }
  return count;
}

inline std::string describe_case(const collectives::KernelTable& table, DType type,
                                 ReduceOp::Kind kind, std::size_t ranks, std::size_t count) {
  return std::string(table.name) + " " + name_of(kind) + " of " + name_of(type) + ", " +
         std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements";
}

}  // namespace ddp::test
