#include "agent/process/worker_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

namespace ddp::agent {
namespace {

constexpr std::size_t kReadBytes = 16 * 1024;
// Reads in a row before others get their turn.
constexpr int kReadsPerTurn = 16;
// A dead worker cannot have left more than its socket buffer holds; a grandchild that holds the
// socket may go on writing.
constexpr int kReadsOfDrain = 256;

}  // namespace

std::shared_ptr<WorkerChannel> WorkerChannel::start(asio::io_context& io, UniqueFd socket,
                                                    Callback on_message) {
  std::shared_ptr<WorkerChannel> channel(new WorkerChannel(io, std::move(on_message)));
  channel->socket_.assign(socket.release());
  channel->wait();
  return channel;
}

void WorkerChannel::wait() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [weak = weak_from_this()](const std::error_code& error) {
                       const auto self = weak.lock();
                       if (!self || error) return;
                       for (int i = 0; i < kReadsPerTurn && self->read_once(); ++i) {
                       }
                       if (self->socket_.is_open()) self->wait();
                     });
}

bool WorkerChannel::read_once() {
  if (!socket_.is_open()) return false;
  char buffer[kReadBytes];
  const ssize_t size = ::recv(socket_.native_handle(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (size <= 0) {
    close();
    return false;
  }
  decoder_.append({buffer, static_cast<std::size_t>(size)});
  for (;;) {
    const auto frame = decoder_.next();
    if (!frame) {
      close();
      return false;
    }
    if (!*frame) return true;
    // A message of a kind that this agent does not know is skipped.
    if (const auto message = wire::decode_worker_message(**frame); message && socket_.is_open())
      on_message_(*message);
  }
}

void WorkerChannel::drain() {
  for (int i = 0; i < kReadsOfDrain && read_once(); ++i) {
  }
}

void WorkerChannel::send(const wire::WorkerOrder& order) {
  if (!socket_.is_open()) return;
  const std::string frame = wire::encode_frame(wire::encode(order));
  const ssize_t sent =
      ::send(socket_.native_handle(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // Half an order would make everything behind it unreadable.
  if (sent > 0 && static_cast<std::size_t>(sent) < frame.size())
    ::shutdown(socket_.native_handle(), SHUT_WR);
}

void WorkerChannel::close() {
  std::error_code ignored;
  socket_.close(ignored);
}

}  // namespace ddp::agent
