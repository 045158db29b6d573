#include "common/config/derived_port.h"

#include <cstdint>

#include "common/base/fnv1a.h"

namespace ddp::config {
namespace {

constexpr int kFirstPort = 20'000;
constexpr int kNumPorts = 12'000;
// A prime that does not divide kNumPorts, so no port comes twice.
constexpr int kPortStride = 7'919;

}  // namespace

std::vector<int> derived_ports(std::string_view name, int count) {
  const std::uint64_t hash = fnv1a(name);
  const auto first = static_cast<int>((hash ^ hash >> 32) % kNumPorts);
  std::vector<int> ports;
  for (int i = 0; i < count; ++i)
    ports.push_back(kFirstPort + (first + i * kPortStride) % kNumPorts);
  return ports;
}

}  // namespace ddp::config
