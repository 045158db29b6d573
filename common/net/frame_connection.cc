#include "common/net/frame_connection.h"

#include <array>
#include <optional>
#include <utility>

#include <asio/post.hpp>

#include "common/net/socket_options.h"

namespace ddp::net {

using asio::ip::tcp;

namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kReadsPerTurn = 16;  // Then other connections get their turn.
constexpr Duration kLingerLimit{2'000};
constexpr StreamOptions kStreamOptions{std::chrono::seconds(3), std::chrono::milliseconds(10'000)};

bool is_retry(const std::error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

asio::io_context& context_of(tcp::socket& socket) {
  return static_cast<asio::io_context&>(
      asio::query(socket.get_executor(), asio::execution::context));
}

}  // namespace

FrameConnection::FrameConnection(tcp::socket socket)
    : socket_(std::move(socket)), linger_(context_of(socket_)) {
  set_stream_options(socket_, kStreamOptions);
  std::error_code ignored;
  const tcp::endpoint remote = socket_.remote_endpoint(ignored);
  local_address_ = address_text(socket_.local_endpoint(ignored).address());
  remote_address_ = address_text(remote.address());
  remote_ = endpoint_text(remote_address_, remote.port());
}

FrameConnection::~FrameConnection() = default;

std::shared_ptr<FrameConnection> FrameConnection::adopt(tcp::socket socket,
                                                        std::string_view received) {
  std::shared_ptr<FrameConnection> connection(new FrameConnection(std::move(socket)));
  connection->decoder_.append(received);
  return connection;
}

void FrameConnection::start(FrameCallback on_frame, ClosedCallback on_closed) {
  DDP_CHECK(!started_, "start() is called once a connection");
  started_ = true;
  on_frame_ = std::move(on_frame);
  on_closed_ = std::move(on_closed);
  // From the event loop, because frames may have come with the preamble.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->deliver_frames();
    self->wait_readable();
  });
}

void FrameConnection::wait_readable() {
  if (ended_) return;
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this()](const std::error_code& error) {
                       if (!error) self->read_some();
                     });
}

void FrameConnection::read_some() {
  for (int i = 0; i < kReadsPerTurn && !ended_; ++i) {
    std::array<char, kReadBytes> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    std::error_code error;
    const std::size_t count = socket_.read_some(asio::buffer(buffer), error);
    if (is_retry(error)) break;
    if (error == asio::error::eof) {
      return end(make_error(Errc::kPeerLost, "{} closed the connection", remote_));
    }
    if (error) {
      return end(
          make_error(Errc::kPeerLost, "connection to {} lost: {}", remote_, error.message()));
    }
    if (draining_) continue;
    decoder_.append({buffer.data(), count});
    deliver_frames();
    if (count < buffer.size()) break;
  }
  wait_readable();
}

void FrameConnection::deliver_frames() {
  while (!ended_ && !draining_) {
    Result<std::optional<std::string>> frame = decoder_.next();
    if (!frame) {
      return end(
          make_error(Errc::kProtocol, "{} sent no frame: {}", remote_, frame.error().message));
    }
    if (!frame->has_value()) return;
    dispatching_ = true;
    on_frame_(std::move(**frame));
    dispatching_ = false;
  }
  if (ended_ && !on_closed_) drop_callbacks();
}

void FrameConnection::send(std::string_view payload) {
  if (ended_ || draining_ || write_broken_) return;
  if (queued_bytes() + payload.size() > kMaxQueuedBytes) {
    return end(make_error(Errc::kIo, "{} does not read: {} bytes wait to be sent, the limit is {}",
                          remote_, queued_bytes() + payload.size(), kMaxQueuedBytes));
  }
  pending_ += wire::encode_frame(payload);
  if (!waiting_writable_) write_some();
}

void FrameConnection::write_some() {
  while (!ended_ && !write_broken_) {
    if (written_ == writing_.size()) {
      writing_.clear();
      written_ = 0;
      std::swap(writing_, pending_);
      if (writing_.empty()) break;
    }
    std::error_code error;
    written_ += socket_.write_some(asio::buffer(writing_) + written_, error);
    if (is_retry(error)) return wait_writable();
    // What the peer sent before it went can still be read, so the reader ends the connection.
    if (error) write_broken_ = true;
  }
  if (draining_) finish_drain();
}

void FrameConnection::wait_writable() {
  waiting_writable_ = true;
  socket_.async_wait(tcp::socket::wait_write,
                     [self = shared_from_this()](const std::error_code& error) {
                       self->waiting_writable_ = false;
                       if (!error) self->write_some();
                     });
}

void FrameConnection::close_after_writes() {
  if (ended_ || draining_) return;
  draining_ = true;
  linger_.after(kLingerLimit, [weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->end(make_error(Errc::kAborted, "connection to {} closed by this side", self->remote_));
    }
  });
  if (!started_) {
    started_ = true;
    wait_readable();
  }
  if (!waiting_writable_) write_some();
}

void FrameConnection::finish_drain() {
  // Closing at once would make the kernel reset the connection if the peer's bytes are unread, and
  // the peer could lose what was sent last.
  std::error_code ignored;
  if (!ended_) socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void FrameConnection::end(Error why) {
  if (ended_) return;
  ended_ = true;
  if (draining_) {
    why = make_error(Errc::kAborted, "connection to {} closed by this side", remote_);
  }
  linger_.cancel();
  std::error_code ignored;
  socket_.close(ignored);
  asio::post(socket_.get_executor(), [self = shared_from_this(), why = std::move(why)] {
    ClosedCallback on_closed = std::move(self->on_closed_);
    self->drop_callbacks();
    if (on_closed) on_closed(why);
  });
}

void FrameConnection::close() {
  on_closed_ = nullptr;
  if (!ended_) {
    ended_ = true;
    linger_.cancel();
    std::error_code ignored;
    socket_.close(ignored);
  }
  if (!dispatching_) drop_callbacks();
}

void FrameConnection::drop_callbacks() {
  // They usually hold the owner, who holds this connection.
  on_frame_ = nullptr;
  on_closed_ = nullptr;
}

bool FrameConnection::is_open() const { return !ended_ && !draining_; }
std::string FrameConnection::local_address() const { return local_address_; }
std::string FrameConnection::remote_address() const { return remote_address_; }
std::size_t FrameConnection::queued_bytes() const {
  return writing_.size() - written_ + pending_.size();
}

}  // namespace ddp::net
