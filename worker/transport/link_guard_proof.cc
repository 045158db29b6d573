// LinkGuard::proving(): the handshake of agents and coordinator, between two ranks.
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/auth/crypto_library.h"
#include "common/auth/handshake.h"
#include "worker/transport/link_guard.h"

namespace ddp::transport {
namespace {

constexpr const char* kPurpose = "links";  // In the place of a job's name.
constexpr const char* kStranger = "it does not know the key of this round";

class Proof : public ConnectionGuard {
 public:
  ssize_t send(int fd, std::span<const std::byte> bytes) override {
    if (!handshake(fd)) return -1;
    return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  ssize_t receive(int fd, std::span<std::byte> bytes) override {
    if (!handshake(fd)) return -1;
    if (rest_.empty()) return ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    const std::size_t count = std::min(bytes.size(), rest_.size());
    std::memcpy(bytes.data(), rest_.data(), count);
    rest_.erase(0, count);
    return static_cast<ssize_t>(count);
  }

  short handshake_waits_for() const override {
    if (done_) return 0;
    return unsent_.empty() ? POLLIN : POLLOUT;
  }

 protected:
  explicit Proof(std::string first) : unsent_(std::move(first)) {}

  // Takes what the peer has sent; adds the answer to `unsent`. False: the peer is a stranger.
  virtual bool take(std::string_view bytes, std::string& unsent) = 0;
  virtual bool is_proven() const = 0;
  virtual std::string_view rest() const = 0;

 private:
  // False: errno says why.
  bool handshake(int fd) {
    while (!done_) {
      if (!flush(fd)) return false;
      if (is_proven()) {
        rest_ = rest();
        done_ = true;
        break;
      }
      char buffer[512];
      const ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got < 0) return false;
      if (got == 0) {
        refuse("it closed the connection before it had proved that it belongs to the job");
        return false;
      }
      if (!take({buffer, static_cast<std::size_t>(got)}, unsent_)) {
        (void)flush(fd);
        refuse(kStranger);
        return false;
      }
    }
    return true;
  }

  bool flush(int fd) {
    while (!unsent_.empty()) {
      const ssize_t sent = ::send(fd, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return false;
      unsent_.erase(0, static_cast<std::size_t>(sent));
    }
    return true;
  }

  std::string unsent_;
  std::string rest_;  // What came with the last bytes of the handshake.
  bool done_ = false;
};

class ConnectingProof : public Proof {
 public:
  explicit ConnectingProof(auth::ClientHandshake handshake)
      : Proof(handshake.hello()), handshake_(std::move(handshake)) {}

 private:
  bool take(std::string_view bytes, std::string& unsent) override {
    const auto answer = handshake_.receive(bytes);
    if (answer) unsent += *answer;
    return static_cast<bool>(answer);
  }
  bool is_proven() const override { return handshake_.done(); }
  std::string_view rest() const override { return handshake_.rest(); }

  auth::ClientHandshake handshake_;
};

class AcceptingProof : public Proof {
 public:
  explicit AcceptingProof(auth::ServerHandshake handshake)
      : Proof(""), handshake_(std::move(handshake)) {}

 private:
  using Outcome = auth::ServerHandshake::Outcome;

  bool take(std::string_view bytes, std::string& unsent) override {
    unsent += handshake_.receive(bytes);
    return handshake_.outcome() == Outcome::kPending || is_proven();
  }
  bool is_proven() const override { return handshake_.outcome() == Outcome::kAdmitted; }
  std::string_view rest() const override { return handshake_.rest(); }

  auth::ServerHandshake handshake_;
};

class ProvingGuard : public LinkGuard {
 public:
  explicit ProvingGuard(Secret key) : key_(std::move(key)) {}

  bool encrypts() const override { return false; }
  Connection connecting(UniqueFd fd) const override {
    return {std::move(fd), std::make_unique<ConnectingProof>(
                               auth::ClientHandshake(key_, kPurpose, auth::random_nonce()))};
  }
  Connection accepting(UniqueFd fd) const override {
    return {std::move(fd),
            std::make_unique<AcceptingProof>(auth::ServerHandshake(key_, auth::random_nonce()))};
  }

 private:
  Secret key_;
};

}  // namespace

Result<std::shared_ptr<const LinkGuard>> LinkGuard::proving(Secret key) {
  if (const auto crypto = auth::CryptoLibrary::load(); !crypto) return crypto.error();
  return std::shared_ptr<const LinkGuard>(new ProvingGuard(std::move(key)));
}

}  // namespace ddp::transport
