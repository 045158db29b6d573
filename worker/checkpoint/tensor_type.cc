#include "worker/checkpoint/tensor_type.h"

#include <array>
#include <limits>

#include "common/base/check.h"

namespace ddp::checkpoint {
namespace {

struct Row {
  std::string_view name;
  std::size_t bytes;
};

// In the order of TensorType.
constexpr std::array<Row, kTensorTypeCount> kRows = {{{"BOOL", 1},
                                                      {"U8", 1},
                                                      {"I8", 1},
                                                      {"F8_E5M2", 1},
                                                      {"F8_E4M3", 1},
                                                      {"I16", 2},
                                                      {"U16", 2},
                                                      {"F16", 2},
                                                      {"BF16", 2},
                                                      {"I32", 4},
                                                      {"U32", 4},
                                                      {"F32", 4},
                                                      {"F64", 8},
                                                      {"I64", 8},
                                                      {"U64", 8}}};

const Row& row_of(TensorType type) {
  const auto index = static_cast<std::size_t>(type);
  DDP_CHECK(index < kRows.size(), "tensor type {}", index);
  return kRows[index];
}

}  // namespace

std::string_view tensor_type_name(TensorType type) { return row_of(type).name; }

std::size_t tensor_type_bytes(TensorType type) { return row_of(type).bytes; }

std::optional<TensorType> tensor_type_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<TensorType>(i);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> tensor_bytes(TensorType type, const std::vector<std::int64_t>& shape) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = tensor_type_bytes(type);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const auto factor = static_cast<std::uint64_t>(dimension);
    if (bytes > kMax / factor) return std::nullopt;
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

}  // namespace ddp::checkpoint
