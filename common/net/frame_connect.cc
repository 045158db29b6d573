// The connecting half of FrameConnection: addresses, the connection, the preambles.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/write.hpp>

#include "common/net/frame_connection.h"
#include "common/net/socket_options.h"
#include "common/wire/frame.h"

namespace ddp::net {

using asio::ip::tcp;

namespace {

// One call of FrameConnection::connect. Its handlers keep it alive; `callback` is empty once it has
// run, and everything that comes after that is void.
struct ConnectAttempt : std::enable_shared_from_this<ConnectAttempt> {
  ConnectAttempt(asio::io_context& io, const std::string& host, int port)
      : socket(io), resolver(io), limit(io), where(endpoint_text(host, port)) {}

  tcp::socket socket;
  tcp::resolver resolver;
  Timer limit;
  std::string where;
  std::chrono::milliseconds timeout{};
  FrameConnection::ConnectCallback callback;
  std::vector<tcp::endpoint> endpoints;
  std::size_t next = 0;
  std::error_code last_error;
  bool connected = false;
  std::array<char, 64> buffer{};
  std::size_t received = 0;

  void begin(const std::string& host, int port);
  void connect_next();
  void say_preamble();
  void read_preamble();
  void check_preamble();
  void expire();
  void finish(Result<std::shared_ptr<FrameConnection>> result);
  void foreign();
};

void ConnectAttempt::begin(const std::string& host, int port) {
  limit.after(timeout, [self = shared_from_this()] { self->expire(); });
  std::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (!error) {
    endpoints.emplace_back(address, static_cast<std::uint16_t>(port));
    asio::post(socket.get_executor(), [self = shared_from_this()] { self->connect_next(); });
    return;
  }
  resolver.async_resolve(
      host, std::to_string(port), tcp::resolver::numeric_service,
      [self = shared_from_this(), host](const std::error_code& failure,
                                        const tcp::resolver::results_type& results) {
        if (!self->callback) return;
        if (failure) {
          return self->finish(make_error(Errc::kNotFound, "host name '{}' does not resolve: {}",
                                         host, failure.message()));
        }
        for (const auto& entry : results) self->endpoints.push_back(entry.endpoint());
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
  socket.async_connect(endpoint, [self = shared_from_this()](const std::error_code& failure) {
    if (!self->callback) return;
    if (!failure) return self->say_preamble();
    self->last_error = failure;
    self->connect_next();
  });
}

void ConnectAttempt::say_preamble() {
  std::error_code error;
  if (socket.local_endpoint(error) == socket.remote_endpoint(error)) {
    // A port of this machine's ephemeral range that nobody listens on can connect to itself.
    last_error = std::make_error_code(std::errc::connection_refused);
    return connect_next();
  }
  connected = true;
  set_stream_options(socket.native_handle(), StreamOptions{});
  asio::async_write(
      socket, asio::buffer(wire::kRendezvousPreamble),
      [self = shared_from_this()](const std::error_code&, std::size_t) { self->read_preamble(); });
}

void ConnectAttempt::read_preamble() {
  if (!callback) return;
  const std::size_t wanted = wire::kRendezvousPreamble.size() - received;
  socket.async_read_some(
      asio::buffer(buffer.data() + received, wanted),
      [self = shared_from_this()](const std::error_code& error, std::size_t count) {
        if (!self->callback) return;
        self->received += count;
        if (error) {
          return self->finish(
              make_error(Errc::kPeerLost,
                         "{} closed the connection without an answer: it is going down, or it is "
                         "not a ddp-run rendezvous of this version",
                         self->where));
        }
        self->check_preamble();
      });
}

void ConnectAttempt::check_preamble() {
  const std::string_view answer(buffer.data(), received);
  if (wire::kRendezvousPreamble.substr(0, received) != answer) return foreign();
  if (received < wire::kRendezvousPreamble.size()) return read_preamble();
  finish(FrameConnection::adopt(ByteStream::create(std::move(socket), {}), {}));
}

void ConnectAttempt::expire() {
  if (connected) return foreign();
  finish(make_error(Errc::kTimeout, "no connection to {} within {} ms", where, timeout.count()));
}

void ConnectAttempt::foreign() {
  finish(make_error(Errc::kProtocol,
                    "{} is in use by a program that is not a ddp-run rendezvous; choose another "
                    "endpoint",
                    where));
}

void ConnectAttempt::finish(Result<std::shared_ptr<FrameConnection>> result) {
  if (!callback) return;
  auto run = std::exchange(callback, nullptr);
  limit.cancel();
  resolver.cancel();
  std::error_code ignored;
  socket.close(ignored);
  run(std::move(result));
}

}  // namespace

void FrameConnection::connect(asio::io_context& io, const std::string& host, int port,
                              std::chrono::milliseconds timeout, ConnectCallback callback) {
  auto attempt = std::make_shared<ConnectAttempt>(io, host, port);
  attempt->timeout = timeout;
  attempt->callback = std::move(callback);
  attempt->begin(host, port);
}

}  // namespace ddp::net
