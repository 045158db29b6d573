#include "common/config/derived_port.h"

#include <cstdint>

namespace ddp::config {
namespace {

constexpr int kFirstPort = 20'000;
constexpr int kNumPorts = 12'000;
// A prime that does not divide kNumPorts, so no port comes twice.
constexpr int kPortStride = 7'919;

}  // namespace

std::vector<int> derived_ports(std::string_view name, int count) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  const auto first = static_cast<int>((hash ^ hash >> 32) % kNumPorts);
  std::vector<int> ports;
  for (int i = 0; i < count; ++i)
    ports.push_back(kFirstPort + (first + i * kPortStride) % kNumPorts);
  return ports;
}

}  // namespace ddp::config
