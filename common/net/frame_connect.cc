// The connecting half of FrameConnection: addresses, the connection, the preambles.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <asio/post.hpp>

#include "common/auth/handshake.h"
#include "common/base/host_port.h"
#include "common/net/frame_connection.h"
#include "common/net/name_lookup.h"
#include "common/net/socket_options.h"
#include "common/process/user_gate.h"
#include "common/wire/frame.h"

namespace ddp::net {

using asio::ip::tcp;

namespace {

// One call of FrameConnection::connect: resolves addresses, connects, and exchanges what both sides
// say before the first frame. Its handlers keep it alive. `callback` is empty once it has run;
// later events are ignored.
struct ConnectAttempt : ByteStream::Handler, std::enable_shared_from_this<ConnectAttempt> {
  ConnectAttempt(asio::io_context& io, const std::string& host, int port)
      : socket(io), lookup(io), limit(io), share(io), where(host_and_port(host, port)) {}

  tcp::socket socket;
  NameLookup lookup;
  Timer limit;
  Timer share;  // Of an address that is not the last one.
  std::string where;
  std::chrono::milliseconds timeout{};
  TimePoint deadline;
  FrameConnection::ConnectCallback callback;
  Endpoints endpoints;
  std::size_t next = 0;
  std::error_code last_error;
  // Once connected. The event loop keeps the stream, and the stream this object, its handler.
  std::weak_ptr<ByteStream> stream;
  Credentials credentials;
  std::optional<auth::ClientHandshake> handshake;  // With a token.
  std::string received;

  void begin(const std::string& host, int port);
  void connect_next();
  void limit_this_address();
  void greet();
  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;
  bool has_unknown_version() const;
  void check_preamble();
  void go_on_with_handshake(std::string_view bytes);
  void expire();
  bool is_strangers() const;
  void adopt(std::string_view rest);
  void finish(Result<std::shared_ptr<FrameConnection>> result);
  void foreign();
};

void ConnectAttempt::begin(const std::string& host, int port) {
  deadline = Clock::now() + timeout;
  limit.after(timeout, [attempt = weak_from_this()] {
    if (const auto self = attempt.lock()) self->expire();
  });
  std::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (!error) {
    endpoints.emplace_back(address, static_cast<std::uint16_t>(port));
    asio::post(socket.get_executor(), [self = shared_from_this()] { self->connect_next(); });
    return;
  }
  lookup.ask(host, port, [self = shared_from_this()](Result<Endpoints> found) {
    if (!self->callback) return;
    if (!found) return self->finish(found.error());
    self->endpoints = *std::move(found);
    self->connect_next();
  });
}

void ConnectAttempt::connect_next() {
  if (!callback) return;
  if (next == endpoints.size()) {
    return finish(
        make_error(Errc::kPeerLost, "cannot connect to {}: {}", where, last_error.message()));
  }
  const tcp::endpoint endpoint = endpoints[next++];
  std::error_code error;
  socket.close(error);
  socket.open(endpoint.protocol(), error);
  if (error) {
    last_error = error;
    return connect_next();
  }
  set_close_on_exec(socket.native_handle());
  limit_this_address();
  socket.async_connect(endpoint, [self = shared_from_this()](const std::error_code& failure) {
    if (!self->callback) return;
    self->share.cancel();
    if (!failure) return self->greet();
    const bool is_late = failure == asio::error::operation_aborted;
    self->last_error = is_late ? std::make_error_code(std::errc::timed_out) : failure;
    self->connect_next();
  });
}

// A firewall that drops packets leaves a connect() alone until the end. The addresses behind it
// have their share of the time.
void ConnectAttempt::limit_this_address() {
  const auto others = static_cast<int>(endpoints.size() - next);
  if (others == 0) return;
  const TimePoint now = Clock::now();
  share.at(now + (deadline - now) / (others + 1), [attempt = weak_from_this()] {
    std::error_code ignored;
    if (const auto self = attempt.lock()) self->socket.cancel(ignored);
  });
}

void ConnectAttempt::greet() {
  std::error_code error;
  if (socket.local_endpoint(error) == socket.remote_endpoint(error)) {
    // A port of this machine's ephemeral range that nobody listens on can connect to itself.
    last_error = std::make_error_code(std::errc::connection_refused);
    return connect_next();
  }
  const auto connected = ByteStream::create(std::move(socket), {});
  stream = connected;
  if (credentials.tls) {
    connected->set_filter(credentials.tls->client(credentials.tls_name), {});
  }
  connected->set_handler(shared_from_this());
  connected->send(handshake ? std::string_view(handshake->hello()) : wire::kRendezvousPreamble);
}

void ConnectAttempt::on_bytes(std::string_view bytes) {
  if (!callback) return;
  received += bytes;
  if (has_unknown_version()) {
    const auto version = static_cast<unsigned char>(received[wire::kAnyPreamble.size()]);
    return finish(make_error(Errc::kProtocol, "{}: {}", where, wire::unknown_version(version)));
  }
  if (handshake) return go_on_with_handshake(bytes);
  check_preamble();
}

bool ConnectAttempt::has_unknown_version() const {
  const std::size_t at = wire::kAnyPreamble.size();
  return received.size() > at && received.starts_with(wire::kAnyPreamble) &&
         received[at] != wire::kRendezvousPreamble[at] && received[at] != auth::kPreamble[at];
}

void ConnectAttempt::on_closed(const Error& why) {
  if (!callback) return;
  if (why.code == std::errc::permission_denied) {
    return finish(Error{why.code, fmt::format("{}: {}", where, why.message)});
  }
  finish(make_error(Errc::kPeerLost,
                    "{} closed the connection without an answer: it is going down, it is not a "
                    "ddp-run rendezvous of this version, or it is another user's on this machine "
                    "(--any-user)",
                    where));
}

void ConnectAttempt::check_preamble() {
  const std::string_view preamble = wire::kRendezvousPreamble;
  const std::size_t size = std::min(received.size(), preamble.size());
  if (received.compare(0, size, preamble, 0, size) != 0) return foreign();
  if (size == preamble.size()) adopt(std::string_view(received).substr(size));
}

void ConnectAttempt::go_on_with_handshake(std::string_view bytes) {
  const Result<std::string> answer = handshake->receive(bytes);
  if (!answer) {
    if (answer.error().code == Errc::kProtocol) return foreign();
    return finish(Error{answer.error().code, fmt::format("{}: {}", where, answer.error().message)});
  }
  stream.lock()->send(*answer);
  if (handshake->done()) adopt(handshake->rest());
}

// Whoever took the port first answers there, and would tell the workers with whom to share their
// data. It has answered, so the system knows whose it is.
bool ConnectAttempt::is_strangers() const {
  if (credentials.any_user || handshake || credentials.tls) return false;
  UserGate gate;
  return gate.judge(stream.lock()->descriptor()) == UserGate::Verdict::kOtherUser;
}

void ConnectAttempt::adopt(std::string_view rest) {
  if (is_strangers()) {
    return finish(
        make_error(Errc::kProtocol,
                   "{} is in use by another user of this machine; choose another endpoint on all "
                   "nodes, or trust that user with --any-user",
                   where));
  }
  finish(FrameConnection::adopt(std::exchange(stream, {}).lock(), rest));
}

void ConnectAttempt::expire() {
  if (!stream.expired()) return foreign();
  finish(make_error(Errc::kTimeout, "no connection to {} within {} ms", where, timeout.count()));
}

void ConnectAttempt::foreign() {
  finish(make_error(Errc::kProtocol,
                    "{} is in use by a program that is not a ddp-run rendezvous; end it, or choose "
                    "another endpoint on all nodes",
                    where));
}

void ConnectAttempt::finish(Result<std::shared_ptr<FrameConnection>> result) {
  if (!callback) return;
  auto run = std::exchange(callback, nullptr);
  limit.cancel();
  share.cancel();
  lookup.cancel();
  std::error_code ignored;
  socket.close(ignored);
  // Held here, because closing releases the handler, which is this object.
  const auto self = shared_from_this();
  if (const auto failed = std::exchange(stream, {}).lock()) failed->close();
  run(std::move(result));
}

}  // namespace

void FrameConnection::connect(asio::io_context& io, const std::string& host, int port,
                              const Credentials& credentials, std::chrono::milliseconds timeout,
                              ConnectCallback callback) {
  auto attempt = std::make_shared<ConnectAttempt>(io, host, port);
  attempt->timeout = timeout;
  attempt->callback = std::move(callback);
  attempt->credentials = credentials;
  if (!credentials.token.empty()) {
    attempt->handshake.emplace(credentials.token, credentials.job_id, auth::random_nonce());
  }
  attempt->begin(host, port);
}

}  // namespace ddp::net
