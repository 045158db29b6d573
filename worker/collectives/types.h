#pragma once

#include <cstddef>
#include <cstdint>

namespace ddp {

enum class DType : std::uint8_t { kU8, kI32, kI64, kF32, kF64 };

constexpr std::size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kU8:
      return 1;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

// kAvg is the sum multiplied once by 1/size, for floating types only. Minimum and maximum give NaN
// if any input is.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax };

// `count` elements of `type` at `data`, contiguous. Not owned.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType type = DType::kF32;

  std::size_t bytes() const { return count * dtype_bytes(type); }
};

}  // namespace ddp
