#include "agent/shell/health_check.h"

#include <fcntl.h>

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/net/timer.h"
#include "common/process/user_gate.h"

namespace ddp::agent {
namespace {

using asio::ip::tcp;

constexpr Duration kRequestLimit{5'000};
constexpr std::size_t kMaxRequest = 8'192;
constexpr int kMaxAsked = 64;  // Requests at once; more wait in the kernel.

}  // namespace

struct HealthCheck::State : std::enable_shared_from_this<HealthCheck::State> {
  // One request: reads it up to its empty line, answers, closes.
  struct Request : std::enable_shared_from_this<Request> {
    Request(tcp::socket connection, std::shared_ptr<State> its_owner)
        : socket(std::move(connection)), limit(its_owner->io), owner(std::move(its_owner)) {
      ++owner->asked;
    }
    ~Request() {
      --owner->asked;
      owner->accept();
    }

    void begin() {
      limit.after(kRequestLimit, [this] { close(); });
      read();
    }
    void read() {
      socket.async_read_some(asio::buffer(buffer), [self = shared_from_this()](
                                                       const std::error_code& error,
                                                       std::size_t size) {
        if (error) return self->close();
        self->text.append(self->buffer.data(), size);
        if (self->text.find("\r\n\r\n") != std::string::npos || self->text.size() > kMaxRequest) {
          return self->answer();
        }
        self->read();
      });
    }
    void answer() {
      const std::string body = owner->status() + "\n";
      text = fmt::format(
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
          "Connection: close\r\n\r\n{}",
          body.size(), body);
      asio::async_write(
          socket, asio::buffer(text),
          [self = shared_from_this()](const std::error_code&, std::size_t) { self->close(); });
    }
    void close() {
      limit.cancel();
      std::error_code ignored;
      socket.close(ignored);
    }

    tcp::socket socket;
    net::Timer limit;
    std::shared_ptr<State> owner;
    std::array<char, 1024> buffer;
    std::string text;
  };

  explicit State(asio::io_context& context) : io(context), acceptor(context) {}

  void accept() {
    if (accepting || asked >= kMaxAsked || !acceptor.is_open()) return;
    accepting = true;
    acceptor.async_accept(
        [weak = weak_from_this()](const std::error_code& error, tcp::socket socket) {
          const auto self = weak.lock();
          if (!self) return;
          self->accepting = false;
          // Workers that are started meanwhile must not inherit the connection.
          if (!error) ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
          if (!error && self->gate && !admits(self->gate->judge(socket.native_handle()))) {
            cut(UniqueFd(socket.release()));
          } else if (!error) {
            std::make_shared<Request>(std::move(socket), self)->begin();
          } else if (error == asio::error::operation_aborted) {
            return;
          }
          self->accept();
        });
  }

  asio::io_context& io;
  tcp::acceptor acceptor;
  std::function<std::string()> status;
  std::optional<UserGate> gate;  // Nothing if any user is answered.
  int asked = 0;
  bool accepting = false;
};

HealthCheck::HealthCheck(std::shared_ptr<State> state) : state_(std::move(state)) {}
HealthCheck::HealthCheck(HealthCheck&&) noexcept = default;
HealthCheck& HealthCheck::operator=(HealthCheck&&) noexcept = default;
HealthCheck::~HealthCheck() {
  if (!state_) return;
  std::error_code ignored;
  state_->acceptor.close(ignored);
}

int HealthCheck::port() const {
  std::error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

Result<HealthCheck> HealthCheck::listen(asio::io_context& io, const std::string& port,
                                        bool any_user, std::function<std::string()> status) {
  unsigned short number = 0;
  const auto [rest, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (failed != std::errc() || rest != port.data() + port.size()) {
    return make_error(Errc::kInvalidArgument,
                      "TORCHELASTIC_HEALTH_CHECK_PORT={}: not a port from 0 to 65535; ddp-run goes "
                      "on without health checks",
                      port);
  }
  auto state = std::make_shared<State>(io);
  state->status = std::move(status);
  if (!any_user) state->gate.emplace();
  std::error_code error;
  const auto listen_at = [&](const tcp::endpoint& endpoint) {
    error.clear();
    std::error_code ignored;
    state->acceptor.close(ignored);
    state->acceptor.open(endpoint.protocol(), error);
    if (error) return;
    ::fcntl(state->acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
    state->acceptor.set_option(tcp::acceptor::reuse_address(true), ignored);
    state->acceptor.bind(endpoint, error);
    if (!error) state->acceptor.listen(asio::socket_base::max_listen_connections, error);
  };
  listen_at(tcp::endpoint(tcp::v4(), number));
  // A machine may have no IPv4.
  if (error == std::errc::address_family_not_supported) listen_at(tcp::endpoint(tcp::v6(), number));
  if (error) {
    return make_error(
        Errc::kIo, "TORCHELASTIC_HEALTH_CHECK_PORT={}: {}; ddp-run goes on without health checks",
        port, error.message());
  }
  state->accept();
  return HealthCheck(std::move(state));
}

}  // namespace ddp::agent
