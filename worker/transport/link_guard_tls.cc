// LinkGuard::encrypting(): TLS 1.3 on the socket itself, so that the kernel can take it over.
#include <errno.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include "common/net/ssl_library.h"
#include "worker/transport/link_guard.h"
#include "worker/transport/non_blocking.h"

namespace ddp::transport {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;

// The pre-shared keys of OpenSSL's older functions work with this one only.
constexpr const char* kCipherSuite = "TLS_AES_128_GCM_SHA256";
constexpr const char* kIdentity = "ddp-run links 1";
// One key may encrypt 2^24.5 full records with a safe margin (RFC 8446, section 5.5); half of that
// are 128 GiB. With keys in the kernel an update may not be possible; they are used on then.
constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

// Writing to a connection that the peer has closed must not end the process. OpenSSL cannot send
// with MSG_NOSIGNAL, so SIGPIPE is held back in this thread, and taken if it came.
class NoSigpipe {
 public:
  NoSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    sigset_t pending;
    ::sigpending(&pending);
    mine_ = ::sigismember(&pending, SIGPIPE) == 0;
  }
  ~NoSigpipe() {
    const int error = errno;
    const timespec no_time{};
    if (mine_ && error == EPIPE) {
      while (::sigtimedwait(&pipe_, nullptr, &no_time) < 0 && errno == EINTR) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool mine_ = false;
};

class TlsConnection : public ConnectionGuard {
 public:
  TlsConnection(const net::SslLibrary& ssl, SSL* session, std::shared_ptr<const LinkGuard> owner,
                short first)
      : ssl_(ssl), session_(session), owner_(std::move(owner)), waits_for_(first) {}
  ~TlsConnection() override { ssl_.session_free(session_); }

  ssize_t send(int, std::span<const std::byte> bytes) override {
    return move(bytes, POLLOUT, [this](const std::byte* from, int size) {
      const int count = ssl_.write(session_, from, size);
      if (count > 0 && ++records_ % kRecordsPerKey == 0)
        ssl_.key_update(session_, SSL_KEY_UPDATE_NOT_REQUESTED);
      return count;
    });
  }

  ssize_t receive(int, std::span<std::byte> bytes) override {
    return move(bytes, POLLIN,
                [this](std::byte* to, int size) { return ssl_.read(session_, to, size); });
  }

  short handshake_waits_for() const override {
    return ssl_.is_finished(session_) != 0 ? short{0} : waits_for_;
  }

 private:
  // OpenSSL moves a record at a time.
  template <typename Bytes, typename MoveRecord>
  ssize_t move(Bytes bytes, short direction, MoveRecord move_record) {
    const NoSigpipe no_sigpipe;
    std::size_t moved = 0;
    while (moved < bytes.size()) {
      ssl_.clear_errors();
      const std::size_t left = std::min<std::size_t>(bytes.size() - moved, INT_MAX);
      const int count = move_record(bytes.data() + moved, static_cast<int>(left));
      if (count <= 0) return moved > 0 ? static_cast<ssize_t>(moved) : failed(count, direction);
      moved += static_cast<std::size_t>(count);
    }
    return static_cast<ssize_t>(moved);
  }

  ssize_t failed(int status, short direction) {
    const int number = errno;
    const int error = ssl_.get_error(session_, status);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      waits_for_ = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      errno = EAGAIN;
      return -1;
    }
    const bool is_over =
        error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && number == 0);
    if (is_over && ssl_.is_finished(session_) == 0) {
      return refuse("it closed the connection before the TLS handshake was over");
    }
    if (is_over) {
      errno = EPIPE;
      return direction == POLLIN ? 0 : -1;
    }
    if (error == SSL_ERROR_SYSCALL) {
      errno = number;
      return -1;
    }
    const unsigned long code = ssl_.next_error();
    const char* const text = code == 0 ? nullptr : ssl_.describe_error(code);
    return refuse(fmt::format("no TLS with it: {}", text != nullptr ? text : "unknown error"));
  }

  const net::SslLibrary& ssl_;
  SSL* session_;
  std::shared_ptr<const LinkGuard> owner_;  // Of the key.
  std::uint64_t records_ = 0;
  short waits_for_;
};

class EncryptingGuard : public LinkGuard, public std::enable_shared_from_this<EncryptingGuard> {
 public:
  EncryptingGuard(const net::SslLibrary& ssl, Secret key)
      : ssl_(ssl), key_(std::move(key)), connects_(make_context()), accepts_(make_context()) {
    // The other end shows no certificate, only its knowledge of the key. If it asks to be taken by
    // a certificate instead, this refuses it.
    ssl_.context_set_verify(connects_, SSL_VERIFY_PEER, nullptr);
  }
  ~EncryptingGuard() override {
    ssl_.context_free(connects_);
    ssl_.context_free(accepts_);
  }

  bool encrypts() const override { return true; }
  Connection connecting(UniqueFd fd) const override {
    SSL* const session = open(connects_, fd.get());
    ssl_.session_set_psk_client(
        session,
        [](SSL* one, const char*, char* identity, unsigned longest_identity, unsigned char* psk,
           unsigned longest) -> unsigned {
          if (std::strlen(kIdentity) >= longest_identity) return 0;
          std::strcpy(identity, kIdentity);  // NOLINT(clang-analyzer-security.insecureAPI.strcpy)
          return copy_key(one, psk, longest);
        });
    ssl_.session_connects(session);
    return {std::move(fd),
            std::make_unique<TlsConnection>(ssl_, session, shared_from_this(), POLLOUT)};
  }
  Connection accepting(UniqueFd fd) const override {
    SSL* const session = open(accepts_, fd.get());
    ssl_.session_set_psk_server(
        session, [](SSL* one, const char* identity, unsigned char* psk, unsigned longest) {
          return std::strcmp(identity, kIdentity) == 0 ? copy_key(one, psk, longest) : 0u;
        });
    ssl_.session_accepts(session);
    return {std::move(fd),
            std::make_unique<TlsConnection>(ssl_, session, shared_from_this(), POLLIN)};
  }

 private:
  static constexpr int kDataIndex = 0;  // OpenSSL's own is for applications.

  SSL_CTX* make_context() const {
    SSL_CTX* const context = ssl_.context_new(ssl_.method());
    DDP_CHECK(context != nullptr, "out of memory for TLS");
    ssl_.context_control(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
    ssl_.context_control(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
    ssl_.context_control(context, SSL_CTRL_MODE,
                         SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
                         nullptr);
    // One system call for several records, not two for each.
    ssl_.context_control(context, SSL_CTRL_SET_READ_AHEAD, 1, nullptr);
    ssl_.context_set_read_buffer(context, kReadBytes);
    ssl_.context_set_options(context, SSL_OP_ENABLE_KTLS | SSL_OP_IGNORE_UNEXPECTED_EOF);
    ssl_.context_set_tickets(context, 0);
    DDP_CHECK(ssl_.context_set_ciphersuites(context, kCipherSuite) == 1, "OpenSSL has no {}",
              kCipherSuite);
    return context;
  }

  SSL* open(SSL_CTX* context, int fd) const {
    make_non_blocking(fd);  // OpenSSL reads and writes without MSG_DONTWAIT.
    SSL* const session = ssl_.session_new(context);
    DDP_CHECK(session != nullptr && ssl_.session_set_fd(session, fd) == 1, "out of memory for TLS");
    ssl_.session_set_data(session, kDataIndex, const_cast<EncryptingGuard*>(this));
    return session;
  }

  // For OpenSSL, which has no other way to hand itself on.
  static unsigned copy_key(SSL* session, unsigned char* psk, unsigned longest) {
    const auto ssl = net::SslLibrary::load();
    const auto* self =
        static_cast<const EncryptingGuard*>((*ssl)->session_get_data(session, kDataIndex));
    const std::string_view key = self->key_.reveal();
    if (key.size() > longest) return 0;
    std::memcpy(psk, key.data(), key.size());
    return static_cast<unsigned>(key.size());
  }

  const net::SslLibrary& ssl_;
  Secret key_;
  SSL_CTX* connects_;
  SSL_CTX* accepts_;
};

}  // namespace

Result<std::shared_ptr<const LinkGuard>> LinkGuard::encrypting(Secret key) {
  const auto ssl = net::SslLibrary::load();
  if (!ssl) return ssl.error();
  return std::shared_ptr<const LinkGuard>(std::make_shared<EncryptingGuard>(**ssl, std::move(key)));
}

}  // namespace ddp::transport
