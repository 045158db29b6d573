#include "common/net/tls.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "common/net/ssl_library.h"

namespace ddp::net {
namespace {

constexpr std::size_t kPieceBytes = 16u << 10;

// The text of the oldest error in OpenSSL's queue. Later errors only say which function passed it
// on.
std::string last_error(const SslLibrary& ssl) {
  const unsigned long code = ssl.next_error();
  const char* const text = code == 0 ? nullptr : ssl.describe_error(code);
  ssl.clear_errors();
  if (text != nullptr) return text;
  // OpenSSL has no text for errors of the system.
  if (ERR_SYSTEM_ERROR(code)) return std::generic_category().message(ERR_GET_REASON(code));
  return "unknown error";
}

// Keys with a passphrase are refused: nobody is there to type it.
int no_passphrase(char*, int, int, void*) { return -1; }

class TlsSession : public StreamFilter {
 public:
  TlsSession(const SslLibrary& ssl, SSL* session, std::string name)
      : ssl_(ssl),
        session_(session),
        name_(std::move(name)),
        in_(ssl.bio_new(ssl.memory_method())),
        out_(ssl.bio_new(ssl.memory_method())) {
    DDP_CHECK(session_ != nullptr && in_ != nullptr && out_ != nullptr, "out of memory for TLS");
    ssl_.session_set_bio(session_, in_, out_);  // The session owns them from now on.
  }
  ~TlsSession() override { ssl_.session_free(session_); }
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  void begin(std::string& to_socket) override {
    ssl_.clear_errors();
    ssl_.handshake(session_);
    flush(to_socket);
  }

  Result<void> receive(std::string_view from_socket, std::string& to_handler,
                       std::string& to_socket) override {
    ssl_.clear_errors();
    const int taken = ssl_.bio_write(in_, from_socket.data(), static_cast<int>(from_socket.size()));
    DDP_CHECK(taken == static_cast<int>(from_socket.size()), "TLS took {} of {} bytes", taken,
              from_socket.size());
    Result<void> done = go_on(to_handler);
    flush(to_socket);
    return done;
  }

  void send(std::string_view from_handler, std::string& to_socket) override {
    if (ssl_.is_finished(session_) == 0) {
      waiting_ += from_handler;
      return;
    }
    write(from_handler);
    flush(to_socket);
  }

  void finish(std::string& to_socket) override {
    if (ssl_.is_finished(session_) == 0) return;
    ssl_.clear_errors();
    ssl_.shutdown(session_);
    flush(to_socket);
  }

 private:
  Result<void> go_on(std::string& to_handler) {
    if (ssl_.is_finished(session_) == 0) {
      const int status = ssl_.handshake(session_);
      if (status != 1) return check(status);
      write(std::exchange(waiting_, {}));
    }
    std::array<char, kPieceBytes> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    while (true) {
      const int count = ssl_.read(session_, bytes.data(), static_cast<int>(bytes.size()));
      if (count <= 0) return check(count);
      to_handler.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  // Never blocks: the output is a memory buffer.
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto size = static_cast<int>(std::min<std::size_t>(bytes.size(), 1u << 30));
      const int count = ssl_.write(session_, bytes.data(), size);
      if (count <= 0) return;  // The next read reports what is wrong.
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  void flush(std::string& to_socket) {
    std::array<char, kPieceBytes> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    while (true) {
      const int count = ssl_.bio_read(out_, bytes.data(), static_cast<int>(bytes.size()));
      if (count <= 0) return;
      to_socket.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  // Success if there is nothing more to do for now, or if the peer said goodbye (the end of the
  // stream follows).
  Result<void> check(int status) {
    const int error = ssl_.get_error(session_, status);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) return {};
    const auto denied = std::make_error_code(std::errc::permission_denied);
    const long verdict = ssl_.verify_result(session_);
    const std::string reason = last_error(ssl_);
    if (verdict != X509_V_OK) {
      return make_error(denied, "its certificate is not accepted: {}{}",
                        ssl_.describe_verify(verdict),
                        name_.empty() ? "" : fmt::format(" (expected: {})", name_));
    }
    return make_error(denied, "no TLS with it: {}", reason);
  }

  const SslLibrary& ssl_;
  SSL* session_;
  std::string name_;
  BIO* in_;
  BIO* out_;
  std::string waiting_;  // To be sent when the handshake is done.
};

class OpensslContext : public TlsContext {
 public:
  explicit OpensslContext(const SslLibrary& ssl)
      : ssl_(ssl), context_(ssl.context_new(ssl.method())) {
    DDP_CHECK(context_ != nullptr, "out of memory for TLS");
    ssl_.context_control(context_, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
    ssl_.context_control(context_, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
    ssl_.context_set_tickets(context_, 0);
    ssl_.context_set_passphrase(context_, no_passphrase);
    ssl_.context_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  ~OpensslContext() override { ssl_.context_free(context_); }
  OpensslContext(const OpensslContext&) = delete;
  OpensslContext& operator=(const OpensslContext&) = delete;

  Result<void> use(const config::TlsFiles& files) {
    ssl_.clear_errors();
    if (ssl_.context_use_certificate(context_, files.certificate.c_str()) != 1) {
      return failure("--tls-cert", files.certificate, "a file with this node's certificate in PEM");
    }
    if (ssl_.context_use_key(context_, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
      return failure("--tls-key", files.key,
                     "a file with the key of --tls-cert in PEM, without a passphrase");
    }
    if (ssl_.context_check_key(context_) != 1) {
      return failure("--tls-key", files.key, "the key that belongs to --tls-cert");
    }
    if (ssl_.context_use_ca(context_, files.ca.c_str()) != 1) {
      return failure(
          "--tls-ca", files.ca,
          "a file with the certificate in PEM of the authority that signs the nodes' certificates");
    }
    return {};
  }

  std::unique_ptr<StreamFilter> client(const std::string& name) const override {
    SSL* const session = ssl_.session_new(context_);
    if (!name.empty()) {
      X509_VERIFY_PARAM* const expected = ssl_.session_parameters(session);
      if (ssl_.set_address(expected, name.c_str()) != 1) {
        ssl_.set_host(expected, name.c_str(), name.size());
      }
    }
    ssl_.session_connects(session);
    return std::make_unique<TlsSession>(ssl_, session, name);
  }

  std::unique_ptr<StreamFilter> server() const override {
    SSL* const session = ssl_.session_new(context_);
    ssl_.session_accepts(session);
    return std::make_unique<TlsSession>(ssl_, session, "");
  }

 private:
  Error failure(const char* flag, const std::string& file, const char* wanted) const {
    return make_error(Errc::kInvalidArgument, "{} {}: {}; name {}", flag, file, last_error(ssl_),
                      wanted);
  }

  const SslLibrary& ssl_;
  SSL_CTX* context_;
};

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const config::TlsFiles& files) {
  const auto ssl = SslLibrary::load();
  if (!ssl) return ssl.error();
  auto context = std::make_shared<OpensslContext>(**ssl);
  if (Result<void> used = context->use(files); !used) return used.error();
  return std::shared_ptr<const TlsContext>(std::move(context));
}

}  // namespace ddp::net
