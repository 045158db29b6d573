#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ddp::checkpoint {

// XXH3 with 128 bits, fed in pieces. It finds damage, not malice. One thread at a time.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void reset();
  void update(std::span<const std::byte> bytes);
  // The checksum of all bytes so far: 32 lower-case hexadecimal digits of the canonical
  // (big-endian) form, as `xxhsum -H2` prints.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::span<const std::byte> bytes);
std::string checksum_of(std::string_view text);

}  // namespace ddp::checkpoint
