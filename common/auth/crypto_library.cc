#include "common/auth/crypto_library.h"

#include <dlfcn.h>

namespace ddp::auth {
namespace {

constexpr const char* kFile = "libcrypto.so.3";

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Result<CryptoLibrary> open_library() {
  void* file = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return make_error(
        Errc::kNotFound,
        "{} cannot be loaded ({}); a job with a token needs it: install the package libssl3", kFile,
        ::dlerror());
  }
  CryptoLibrary crypto;
  if (!find(file, "HMAC", crypto.hmac) || !find(file, "EVP_sha256", crypto.sha256) ||
      !find(file, "CRYPTO_memcmp", crypto.compare)) {
    return make_error(Errc::kNotFound, "{} is not usable; install the package libssl3", kFile);
  }
  return crypto;
}

}  // namespace

Result<const CryptoLibrary*> CryptoLibrary::load() {
  static const Result<CryptoLibrary> library = open_library();
  if (!library) return library.error();
  return &*library;
}

}  // namespace ddp::auth
