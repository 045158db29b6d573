#pragma once

#include <cstddef>
#include <cstdint>

namespace ddp {

enum class DType : std::uint8_t { kU8, kI8, kI32, kI64, kF16, kBF16, kF32, kF64 };
inline constexpr std::size_t kDTypes = 8;

constexpr std::size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool is_half(DType type) { return type == DType::kF16 || type == DType::kBF16; }

constexpr bool is_floating(DType type) {
  return is_half(type) || type == DType::kF32 || type == DType::kF64;
}

// The type in which elements are combined: half types are rounded once, at the end.
constexpr DType accumulator_of(DType type) { return is_half(type) ? DType::kF32 : type; }

// How the elements of all ranks are combined. Converts implicitly from its kinds, so
// `ReduceOp::kSum` is a ReduceOp.
//
// kAvg is the sum multiplied once by 1/size. kMin and kMax give NaN if any input is, and -0 is less
// than +0. kPremulSum multiplies each rank's input by that rank's factor, then sums. Integers wrap.
class ReduceOp {
 public:
  // Unscoped, so that one writes ReduceOp::kSum.
  enum Kind : std::uint8_t { kSum, kAvg, kProd, kMin, kMax, kBand, kBor, kBxor, kPremulSum };
  static constexpr std::size_t kKinds = 9;

  constexpr ReduceOp(Kind kind = kSum) : kind_(kind) {}  // NOLINT: converts on purpose.
  // The factor may differ between ranks.
  static constexpr ReduceOp premul_sum(double factor) {
    ReduceOp op(kPremulSum);
    op.factor_ = factor;
    return op;
  }

  constexpr Kind kind() const { return kind_; }
  // 1 for all but kPremulSum.
  constexpr double factor() const { return factor_; }
  friend constexpr bool operator==(const ReduceOp& a, const ReduceOp& b) = default;

 private:
  Kind kind_;
  double factor_ = 1.0;
};

// Whether elements of the type can be reduced this way: averages and factors need floating point,
// bitwise operations need integers.
constexpr bool valid(DType type, ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return is_floating(type);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_floating(type);
    case ReduceOp::kSum:
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return true;
  }
  return false;
}

// "f32", "bf16", ...
const char* name_of(DType type);
// "sum", "premul_sum", ...
const char* name_of(ReduceOp op);

// `count` elements of `type` at `data`, contiguous. Not owned.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType type = DType::kF32;

  std::size_t bytes() const { return count * dtype_bytes(type); }
};

}  // namespace ddp
