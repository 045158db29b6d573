#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/checkpoint/tensor_type.h"

namespace ddp::checkpoint {

// An element of a tensor as a number. Exact, because a long double has 64 bits of mantissa. BOOL is
// 0 or 1. `bytes` has tensor_type_bytes(type) bytes.
long double element_value(TensorType type, const std::byte* bytes);

// How two tensors of the same type and size differ. Elements differ if their bits do: two NaNs may
// be equal, 0 and -0 differ by 0.
struct TensorDifference {
  std::uint64_t elements = 0;    // How many differ.
  std::uint64_t largest_at = 0;  // Index, row-major, of the element with the largest difference.
  long double largest = 0;       // Infinite if one of the two is not a number.
};

TensorDifference compare_tensors(TensorType type, std::span<const std::byte> a,
                                 std::span<const std::byte> b);

}  // namespace ddp::checkpoint
