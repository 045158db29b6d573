#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ddp::checkpoint {

// The element types of safetensors. Names in files: tensor_type_name.
enum class TensorType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

inline constexpr int kTensorTypeCount = 15;

std::string_view tensor_type_name(TensorType type);
std::size_t tensor_type_bytes(TensorType type);
std::optional<TensorType> tensor_type_from_name(std::string_view name);

// Bytes of a row-major tensor; nothing if a dimension is negative or the product does not fit in 63
// bits.
std::optional<std::uint64_t> tensor_bytes(TensorType type, const std::vector<std::int64_t>& shape);

}  // namespace ddp::checkpoint
