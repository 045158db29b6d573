#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base/result.h"

namespace ddp::auth {

// The functions of OpenSSL's libcrypto that are used here, found at run time: loading it costs as
// much as the rest of ddp-run's start, and only jobs with a token need it. Never unloaded.
struct CryptoLibrary {
  decltype(&::HMAC) hmac = nullptr;
  decltype(&::EVP_sha256) sha256 = nullptr;
  decltype(&::EVP_Digest) digest = nullptr;
  decltype(&::CRYPTO_memcmp) compare = nullptr;

  // Loads it on the first call. kNotFound says which package is missing. Any thread.
  static Result<const CryptoLibrary*> load();
};

}  // namespace ddp::auth
