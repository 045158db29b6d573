#pragma once

#include <cstdint>
#include <random>

#include "common/base/clock.h"

namespace ddp::sim {

// All randomness of a simulation comes from one of these.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // low..high, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  Duration ms(std::int64_t low, std::int64_t high) { return Duration{between(low, high)}; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace ddp::sim
