#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ddp::auth {

inline constexpr std::size_t kMacBytes = 32;
using Mac = std::array<unsigned char, kMacBytes>;

// HMAC-SHA256 (RFC 2104, FIPS 180-4) by OpenSSL. CryptoLibrary::load() must have succeeded.
Mac hmac_sha256(std::string_view key, std::string_view data);

// SHA-256 (FIPS 180-4), likewise.
Mac sha256(std::string_view data);

// Takes a time that depends only on the sizes, so that it does not reveal how much of a guess was
// right.
bool equal_in_constant_time(std::string_view a, std::string_view b);

inline std::string_view bytes_of(const Mac& mac) {
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

}  // namespace ddp::auth
