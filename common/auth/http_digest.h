#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/secret.h"

namespace ddp::auth {

// The value of Authorization with which a client that knows the token answers a challenge (the
// value of WWW-Authenticate). Empty if it is not one of HttpDigest.
std::string http_digest_answer(std::string_view challenge, const Secret& token,
                               std::string_view method, std::string_view target);

// HTTP's Digest authentication (RFC 7616) with SHA-256 and qop "auth". A browser asks its user for
// the token once, as a password with any user name, and proves with each request that it knows it,
// without sending it. Pure: time in seconds goes in. CryptoLibrary::load() must have succeeded.
//
// A challenge's nonce is its time with a MAC, so nothing is kept for clients. It holds for
// kNonceSeconds; a browser then answers the next challenge by itself. Pages are read-only and,
// without TLS, travel in the clear: who listens on the network reads them, and can repeat a request
// for so long.
class HttpDigest {
 public:
  static constexpr std::int64_t kNonceSeconds = 3'600;

  enum class Verdict {
    kAdmitted,
    kNone,   // The request has no proof of this kind.
    kWrong,  // Its proof is wrong: of another token, another request, or not readable.
    kStale,  // The proof is right, but its challenge is too old, or an earlier daemon's.
  };

  // `key`: random bytes of this process, for the MACs.
  HttpDigest(Secret token, std::string key);

  // The value of WWW-Authenticate. `stale`: the client need not ask its user again.
  std::string challenge(std::int64_t now, bool stale) const;
  // `target`: as in the request line. `authorization`: the value of that header; may be empty.
  Verdict judge(std::string_view method, std::string_view target, std::string_view authorization,
                std::int64_t now) const;

 private:
  std::string nonce_of(std::string_view time) const;

  Secret token_;
  std::string key_;
};

}  // namespace ddp::auth
