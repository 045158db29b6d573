#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddp::bench {

// The contents of buffers: small whole numbers, so that sums of a few ranks are exact in bfloat16,
// too. They differ by rank, by run and along the buffer, so that verification notices an element of
// the wrong rank, of an earlier run or from the wrong place.
constexpr float pattern(int rank, unsigned run, std::size_t index) {
  return static_cast<float>(1 + rank) + static_cast<float>(run % 4) + static_cast<float>(index % 8);
}

// bfloat16 of a number that it holds exactly.
constexpr std::uint16_t to_bf16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}
constexpr float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Writes the pattern of `rank` from its beginning. element: 4 for float, 2 for bfloat16.
inline void fill_pattern(std::byte* data, std::size_t count, std::size_t element, int rank,
                         unsigned run) {
  std::byte block[8 * 4];
  for (std::size_t index = 0; index < 8; ++index) {
    const float value = pattern(rank, run, index);
    const std::uint16_t half = to_bf16(value);
    std::memcpy(block + index * element,
                element == 4 ? static_cast<const void*>(&value) : static_cast<const void*>(&half),
                element);
  }
  const std::size_t bytes = count * element;
  std::size_t at = 0;
  if (element == 4) {
    for (; at + 32 <= bytes; at += 32) std::memcpy(data + at, block, 32);
  } else {
    for (; at + 16 <= bytes; at += 16) std::memcpy(data + at, block, 16);
  }
  std::memcpy(data + at, block, bytes - at);
}

inline float element_at(const std::byte* data, std::size_t element, std::size_t index) {
  if (element == 4) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, data + index * 2, 2);
  return from_bf16(half);
}

}  // namespace ddp::bench
