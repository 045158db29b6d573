#pragma once

#include <cstdint>
#include <initializer_list>

namespace ddp {

// Random numbers that are the same on every machine, compiler and library version: xoshiro256**
// over integers. The standard does not fix the results of the standard library's distributions, so
// data and permutations must not use them. A value type; one thread at a time.
class Random {
 public:
  // Streams of different keys are independent: Random({seed, epoch}).
  explicit Random(std::initializer_list<std::uint64_t> key) {
    std::uint64_t mix = 0x243f6a8885a308d3;
    for (const std::uint64_t part : key) mix = split_mix(mix ^ part);
    for (std::uint64_t& word : state_) {
      mix += 0x9e3779b97f4a7c15;
      word = split_mix(mix);
    }
  }

  std::uint64_t next() {
    const std::uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // 0 .. bound - 1, each equally likely; bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t surplus =
        (0 - bound) % bound;  // 2^64 mod bound: rejecting these values avoids a bias.
    std::uint64_t value = next();
    while (value < surplus) value = next();
    return value % bound;
  }

  // In [low, high).
  double between(double low, double high) {
    constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53, so that the product is exact.
    return low + (high - low) * (static_cast<double>(next() >> 11) * kUnit);
  }

 private:
  static std::uint64_t rotate(std::uint64_t value, int bits) {
    return (value << bits) | (value >> (64 - bits));
  }
  static std::uint64_t split_mix(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

  std::uint64_t state_[4];
};

}  // namespace ddp
