#include "common/auth/hmac.h"

#include "common/auth/crypto_library.h"
#include "common/base/check.h"

namespace ddp::auth {
namespace {

const CryptoLibrary& library() {
  static const Result<const CryptoLibrary*> loaded = CryptoLibrary::load();
  return **loaded;
}

}  // namespace

Mac hmac_sha256(std::string_view key, std::string_view data) {
  const CryptoLibrary& crypto = library();
  Mac mac{};
  unsigned int size = 0;
  const auto* const out = crypto.hmac(crypto.sha256(), key.data(), static_cast<int>(key.size()),
                                      reinterpret_cast<const unsigned char*>(data.data()),
                                      data.size(), mac.data(), &size);
  DDP_CHECK(out != nullptr && size == mac.size(), "HMAC-SHA256 over {} bytes gave {}", data.size(),
            size);
  return mac;
}

Mac sha256(std::string_view data) {
  const CryptoLibrary& crypto = library();
  Mac hash{};
  unsigned int size = 0;
  const int done =
      crypto.digest(data.data(), data.size(), hash.data(), &size, crypto.sha256(), nullptr);
  DDP_CHECK(done == 1 && size == hash.size(), "SHA-256 of {} bytes gave {}", data.size(), size);
  return hash;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && library().compare(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ddp::auth
