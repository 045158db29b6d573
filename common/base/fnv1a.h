#pragma once

#include <cstdint>
#include <string_view>

namespace ddp {

// FNV-1a with 64 bits: the same number for the same bytes in every process and release. Not for
// bytes that somebody has chosen to collide.
constexpr std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace ddp
