#include "common/net/listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include <asio/ip/v6_only.hpp>
#include <asio/steady_timer.hpp>

#include "common/base/host_port.h"
#include "common/net/socket_options.h"

namespace ddp::net {

using asio::ip::tcp;

namespace {

// After that many, the connections get their turn: each accept makes them wait for some 10 us.
constexpr int kAcceptBatch = 8;
constexpr std::chrono::milliseconds kAcceptPause{100};

std::error_code bind_and_listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint,
                                bool dual_stack) {
  std::error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) set_close_on_exec(acceptor.native_handle());
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error && dual_stack) acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor.bind(endpoint, error);
  // The kernel cuts the backlog down to net.core.somaxconn.
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  std::error_code ignored;
  if (error) acceptor.close(ignored);
  return error;
}

// Asio's codes have a category of their own, which std::errc does not know.
bool is_errno(const std::error_code& error, int number) { return error.value() == number; }

bool lacks_ipv6(const std::error_code& error) {
  return is_errno(error, EAFNOSUPPORT) || is_errno(error, EADDRNOTAVAIL) ||
         is_errno(error, EPROTONOSUPPORT);
}

Error listen_error(const std::error_code& error, const std::string& address, int port) {
  const std::string where = host_and_port(address.empty() ? std::string("*") : address, port);
  if (is_errno(error, EADDRINUSE)) {
    return make_error(Errc::kExists,
                      "{} is in use by another program; end it, choose another port, or port 0 for "
                      "any free one (`ss -ltnp 'sport = :{}'` shows who has it)",
                      where, port);
  }
  if (is_errno(error, EADDRNOTAVAIL)) {
    return make_error(Errc::kInvalidArgument,
                      "cannot listen on {}: this machine has no such address; `ip addr` lists them",
                      where);
  }
  return make_error(Errc::kIo, "cannot listen on {}: {}", where, error.message());
}

}  // namespace

struct Listener::State : std::enable_shared_from_this<State> {
  explicit State(asio::io_context& io) : acceptor(io), pause(io) {}
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  AcceptCallback on_accept;
  bool closed = false;

  void wait() {
    if (closed) return;
    acceptor.async_wait(tcp::acceptor::wait_read,
                        [self = shared_from_this()](const std::error_code& error) {
                          if (!error && !self->closed) self->accept_some();
                        });
  }

  void accept_some() {
    for (int i = 0; i < kAcceptBatch; ++i) {
      std::error_code error;
      tcp::socket socket = acceptor.accept(error);
      if (closed) return;
      if (!error) {
        set_close_on_exec(socket.native_handle());
        on_accept(std::move(socket));
        if (closed) return;
        continue;
      }
      if (error == asio::error::would_block || error == asio::error::try_again) break;
      if (is_errno(error, ECONNABORTED)) continue;
      // Most likely out of descriptors: the connection stays in the backlog and the socket stays
      // readable, so waiting for it would spin.
      pause.expires_after(kAcceptPause);
      pause.async_wait([self = shared_from_this()](const std::error_code&) { self->wait(); });
      return;
    }
    wait();
  }
};

Listener::Listener(std::shared_ptr<State> state) : state_(std::move(state)) {}

Listener::~Listener() {
  std::error_code ignored;
  state_->closed = true;
  state_->acceptor.close(ignored);
  state_->pause.cancel();
}

Result<std::unique_ptr<Listener>> Listener::open(asio::io_context& io, const std::string& address,
                                                 int port) {
  if (port < 0 || port > 65535) {
    return make_error(Errc::kInvalidArgument, "port {} is not between 0 and 65535", port);
  }
  auto state = std::make_shared<State>(io);
  const auto number = static_cast<std::uint16_t>(port);
  std::error_code error;
  if (address.empty()) {
    error = bind_and_listen(state->acceptor, {asio::ip::address_v6::any(), number}, true);
    if (error && lacks_ipv6(error)) {
      error = bind_and_listen(state->acceptor, {asio::ip::address_v4::any(), number}, false);
    }
  } else {
    const asio::ip::address parsed = asio::ip::make_address(address, error);
    if (error) {
      return make_error(Errc::kInvalidArgument,
                        "'{}' is not a numeric address; give one like 127.0.0.1 or ::1", address);
    }
    error = bind_and_listen(state->acceptor, {parsed, number}, false);
  }
  if (error) return listen_error(error, address, port);
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

void Listener::start(AcceptCallback on_accept) {
  state_->on_accept = std::move(on_accept);
  state_->wait();
}

int Listener::port() const {
  std::error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

std::string Listener::endpoint() const {
  std::error_code ignored;
  const tcp::endpoint endpoint = state_->acceptor.local_endpoint(ignored);
  return host_and_port(address_text(endpoint.address()), endpoint.port());
}

}  // namespace ddp::net
