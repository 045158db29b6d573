#include "launcher/check/peer_server.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "common/base/random_hex.h"
#include "common/net/listener.h"

namespace ddp::check {
namespace {

constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kBuffer = 256u << 10;

// One connection. It lives as long as something is read or written.
class PeerSession : public std::enable_shared_from_this<PeerSession> {
 public:
  PeerSession(asio::ip::tcp::socket socket, std::string token)
      : socket_(std::move(socket)), token_(std::move(token)), buffer_(kBuffer, '\0') {
    std::error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  }

  void start() {
    asio::async_read(socket_, asio::buffer(buffer_, kTokenBytes + 1),
                     [self = shared_from_this()](const std::error_code& error, std::size_t) {
                       if (!error) self->on_greeting();
                     });
  }

 private:
  void on_greeting() {
    if (std::string_view(buffer_).substr(0, kTokenBytes) != token_) return;
    const char wanted = buffer_[kTokenBytes];
    if (wanted == kPing) wait_for_ping();
    if (wanted == kSink) sink();
  }

  void wait_for_ping() {
    asio::async_read(socket_, asio::buffer(buffer_, kNumberBytes),
                     [self = shared_from_this()](const std::error_code& error, std::size_t) {
                       if (!error) self->answer(wall_clock_us(), true);
                     });
  }

  void sink() {
    socket_.async_read_some(
        asio::buffer(buffer_),
        [self = shared_from_this()](const std::error_code& error, std::size_t count) {
          self->received_ += static_cast<std::int64_t>(count);
          if (!error) return self->sink();
          if (error == asio::error::eof) self->answer(self->received_, false);
        });
  }

  void answer(std::int64_t number, bool goes_on) {
    answer_ = to_bytes(number);
    asio::async_write(
        socket_, asio::buffer(answer_),
        [self = shared_from_this(), goes_on](const std::error_code& error, std::size_t) {
          if (!error && goes_on) self->wait_for_ping();
        });
  }

  asio::ip::tcp::socket socket_;
  std::string token_;
  std::string buffer_;
  std::string answer_;
  std::int64_t received_ = 0;
};

}  // namespace

std::int64_t wall_clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string to_bytes(std::int64_t number) {
  std::string bytes;
  for (std::size_t i = 0; i < kNumberBytes; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i));
  return bytes;
}

std::int64_t from_bytes(const std::string& bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < kNumberBytes && i < bytes.size(); ++i)
    number |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return static_cast<std::int64_t>(number);
}

struct PeerServer::State {
  asio::io_context io{1};
  std::unique_ptr<net::Listener> listener;
  std::thread thread;
};

PeerServer::PeerServer(std::unique_ptr<State> state, std::string token, int port)
    : token_(std::move(token)), port_(port), state_(std::move(state)) {}

Result<std::unique_ptr<PeerServer>> PeerServer::start() {
  auto state = std::make_unique<State>();
  auto listener = net::Listener::open(state->io, "", 0);
  if (!listener) return listener.error();
  state->listener = std::move(*listener);
  std::string token = random_hex(kTokenBytes / 2);
  const int port = state->listener->port();
  state->listener->start([token](asio::ip::tcp::socket socket) {
    std::make_shared<PeerSession>(std::move(socket), token)->start();
  });
  state->thread = std::thread([io = &state->io] { io->run(); });
  return std::unique_ptr<PeerServer>(new PeerServer(std::move(state), std::move(token), port));
}

PeerServer::~PeerServer() {
  state_->io.stop();
  state_->thread.join();
  state_->listener.reset();
}

}  // namespace ddp::check
