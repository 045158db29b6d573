#pragma once

#include <memory>

#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/base/unique_fd.h"
#include "worker/transport/connection.h"

namespace ddp::transport {

// Makes connections between nodes safe against strangers on the network, with a key that only the
// workers of a round know (common/wire/shm_layout.h). A null guard means: no key, so no protection
// but the endpoints' random numbers.
//
// Any thread, once made.
class LinkGuard {
 public:
  // Both ends prove that they know the key (common/auth/handshake.h); what follows is plain. For
  // jobs with a token. kNotFound names the missing library.
  static Result<std::shared_ptr<const LinkGuard>> proving(Secret key);
  // TLS 1.3 with the key as pre-shared key and an ephemeral Diffie-Hellman exchange (RFC 8446,
  // section 2.2): what was recorded stays secret even if the key becomes known later. The kernel
  // encrypts where it can (CONFIG_TLS). For jobs with TLS.
  static Result<std::shared_ptr<const LinkGuard>> encrypting(Secret key);
  virtual ~LinkGuard() = default;
  LinkGuard(const LinkGuard&) = delete;
  LinkGuard& operator=(const LinkGuard&) = delete;

  virtual bool encrypts() const = 0;
  // The end that has connected, and the end that has accepted. The handshake is part of the first
  // calls of the connection. It does not take long, but a stranger may never finish it.
  virtual Connection connecting(UniqueFd fd) const = 0;
  virtual Connection accepting(UniqueFd fd) const = 0;

 protected:
  LinkGuard() = default;
};

// The same for a guard that may be null.
inline Connection connecting(const LinkGuard* guard, UniqueFd fd) {
  return guard != nullptr ? guard->connecting(std::move(fd)) : Connection(std::move(fd));
}
inline Connection accepting(const LinkGuard* guard, UniqueFd fd) {
  return guard != nullptr ? guard->accepting(std::move(fd)) : Connection(std::move(fd));
}

}  // namespace ddp::transport
