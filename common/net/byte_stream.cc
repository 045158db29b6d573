#include "common/net/byte_stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <asio/post.hpp>

namespace ddp::net {

using asio::ip::tcp;

namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kReadsPerTurn = 16;  // After that many, other connections get their turn.
constexpr std::size_t kKeepBytes = 512;
constexpr Duration kLingerLimit{2'000};

bool is_retry(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

asio::io_context& context_of(tcp::socket& socket) {
  return static_cast<asio::io_context&>(
      asio::query(socket.get_executor(), asio::execution::context));
}

void clear_and_trim(std::string& bytes) {
  bytes.clear();
  if (bytes.capacity() > kKeepBytes) bytes.shrink_to_fit();
}

}  // namespace

ByteStream::ByteStream(asio::io_context& io, tcp::socket socket, const Options& options)
    : io_(io), socket_options_(options.socket), max_queued_bytes_(options.max_queued_bytes) {
  std::error_code ignored;
  remote_ = socket.remote_endpoint(ignored);
  socket_.reset(socket.release(ignored));  // From asio's reactor: the Poller watches it.
  set_stream_options(socket_.get(), options.socket);
}

std::shared_ptr<ByteStream> ByteStream::create(tcp::socket socket, const Options& options) {
  asio::io_context& io = context_of(socket);
  return std::shared_ptr<ByteStream>(new ByteStream(io, std::move(socket), options));
}

void ByteStream::set_options(const Options& options) {
  max_queued_bytes_ = options.max_queued_bytes;
  if (ended_ || options.socket == socket_options_) return;
  socket_options_ = options.socket;
  set_stream_options(socket_.get(), options.socket);
}

void ByteStream::set_handler(std::shared_ptr<Handler> handler) {
  if (ended_) return;
  const bool first = handler_ == nullptr;
  handler_ = std::move(handler);
  if (first) resume_reading();
}

void ByteStream::pause_reading() {
  paused_ = true;
  watch();
}

void ByteStream::resume_reading() {
  paused_ = false;
  watch();
}

void ByteStream::watch() {
  if (ended_) return;
  Poller::of(io_).watch(socket_.get(), shared_from_this(), {!paused_, waiting_writable_});
}

void ByteStream::on_ready(bool readable, bool writable) {
  if (writable && waiting_writable_) drained();
  if (readable) read_some();
}

void ByteStream::read_some() {
  for (int i = 0; i < kReadsPerTurn && !ended_ && !paused_; ++i) {
    std::array<char, kReadBytes> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && is_retry(errno)) break;
    if (got == 0) {
      return end(make_error(Errc::kPeerLost, "{} closed the connection", remote()));
    }
    if (got < 0) {
      const Errc code = errno == ETIMEDOUT ? Errc::kTimeout : Errc::kPeerLost;
      return end(make_error(code, "connection to {} lost: {}", remote(),
                            std::generic_category().message(errno)));
    }
    const auto count = static_cast<std::size_t>(got);
    if (!draining_) deliver({buffer.data(), count});
    if (count < buffer.size()) break;
  }
}

void ByteStream::give(std::string_view bytes) {
  // A copy: the handler may replace itself while it runs.
  const std::shared_ptr<Handler> handler = handler_;
  handler->on_bytes(bytes);
}

void ByteStream::deliver(std::string_view from_socket) {
  if (!filter_) return give(from_socket);
  std::string plain, answer;
  const Result<void> accepted = filter_->receive(from_socket, plain, answer);
  queue(answer);
  if (!plain.empty() && is_open() && handler_) give(plain);
  if (accepted || !is_open()) return;
  refusal_ = std::make_unique<Error>(accepted.error());
  filter_ = nullptr;
  close_after_writes();
}

void ByteStream::set_filter(std::unique_ptr<StreamFilter> filter, std::string_view received) {
  filter_ = std::move(filter);
  std::string first;
  filter_->begin(first);
  queue(first);
  if (!received.empty()) deliver(received);
}

void ByteStream::send(std::string_view bytes) {
  if (!filter_ || bytes.empty() || !is_open()) return queue(bytes);
  std::string to_socket;
  filter_->send(bytes, to_socket);
  queue(to_socket);
}

void ByteStream::queue(std::string_view bytes) {
  if (ended_ || draining_ || write_broken_ || bytes.empty()) return;
  if (queued_bytes() + bytes.size() > max_queued_bytes_ && queued_bytes() > 0) {
    return end(make_error(Errc::kIo, "{} does not read: {} bytes wait to be sent, the limit is {}",
                          remote(), queued_bytes() + bytes.size(), max_queued_bytes_));
  }
  if (queued_bytes() == 0 && !waiting_writable_) bytes.remove_prefix(write_now(bytes));
  if (bytes.empty() || write_broken_) return;
  pending_.append(bytes);
  if (!waiting_writable_) write_some();
}

// Returns how many bytes the kernel took.
std::size_t ByteStream::write_now(std::string_view bytes) {
  const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return static_cast<std::size_t>(count);
  // The last bytes of the peer can still be read, so the reading side ends the connection.
  if (!is_retry(errno)) write_broken_ = true;
  return 0;
}

void ByteStream::write_some() {
  while (!ended_ && !write_broken_) {
    if (written_ == writing_.size()) {
      written_ = 0;
      clear_and_trim(writing_);
      std::swap(writing_, pending_);
      if (writing_.empty()) break;
    }
    const std::size_t count = write_now(std::string_view(writing_).substr(written_));
    written_ += count;
    if (count == 0 && !write_broken_) {
      waiting_writable_ = true;
      return watch();
    }
  }
  if (write_broken_) {
    clear_and_trim(writing_);
    clear_and_trim(pending_);
    written_ = 0;
  }
  if (draining_ && !ended_) ::shutdown(socket_.get(), SHUT_WR);
}

// The kernel takes bytes again.
void ByteStream::drained() {
  waiting_writable_ = false;
  if (draining_) limit_draining();
  write_some();
  if (waiting_writable_) return;
  watch();
  if (ended_ || draining_) return;
  const std::shared_ptr<Handler> handler = handler_;
  if (handler) handler->on_drained();
}

void ByteStream::close_after_writes() {
  if (ended_ || draining_) return;
  if (filter_) {
    std::string farewell;
    filter_->finish(farewell);
    queue(farewell);
    if (ended_) return;
  }
  draining_ = true;
  limit_draining();
  resume_reading();
  if (!waiting_writable_) write_some();
}

void ByteStream::limit_draining() {
  if (!linger_) linger_.emplace(io_);
  linger_->after(kLingerLimit, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->end({});
  });
}

bool ByteStream::close_socket() {
  if (ended_) return false;
  ended_ = true;
  if (linger_) linger_->cancel();
  const UniqueFd socket = std::move(socket_);
  Poller::of(io_).forget(socket.get());
  return true;
}

void ByteStream::end(Error why) {
  if (!close_socket()) return;
  if (refusal_) {
    why = *refusal_;
  } else if (draining_) {
    why = make_error(Errc::kAborted, "connection to {} closed by this side", remote());
  }
  asio::post(io_, [self = shared_from_this(), why = std::move(why)] {
    const std::shared_ptr<Handler> handler = std::exchange(self->handler_, nullptr);
    if (handler) handler->on_closed(why);
  });
}

void ByteStream::close() {
  handler_ = nullptr;
  close_socket();
}

}  // namespace ddp::net
