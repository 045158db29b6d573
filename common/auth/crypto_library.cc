#include "common/auth/crypto_library.h"

#include "common/base/dynamic_library.h"

namespace ddp::auth {
namespace {

constexpr const char* kFile = "libcrypto.so.3";

Result<CryptoLibrary> open_library() {
  const auto file = DynamicLibrary::open({kFile});
  if (!file) {
    return make_error(
        Errc::kNotFound,
        "{} cannot be loaded ({}); a job with a token needs it: install the package libssl3", kFile,
        file.error().message);
  }
  CryptoLibrary crypto;
  Symbols symbols(*file);
  symbols.need(crypto.hmac, "HMAC");
  symbols.need(crypto.sha256, "EVP_sha256");
  symbols.need(crypto.digest, "EVP_Digest");
  symbols.need(crypto.compare, "CRYPTO_memcmp");
  if (!symbols.missing().empty())
    return make_error(Errc::kNotFound, "{} is not usable; install the package libssl3", kFile);
  return crypto;
}

}  // namespace

Result<const CryptoLibrary*> CryptoLibrary::load() {
  static const Result<CryptoLibrary> library = open_library();
  if (!library) return library.error();
  return &*library;
}

}  // namespace ddp::auth
