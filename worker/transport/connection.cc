#include "worker/transport/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <system_error>
#include <utility>

namespace ddp::transport {
namespace {

constexpr std::chrono::seconds kLookPause{1};
constexpr int kSentAgain = 3;  // Times in a row. The answer to what was just sent is on its way.

}  // namespace

ssize_t ConnectionGuard::refuse(std::string why) {
  if (why_.empty()) why_ = std::move(why);
  errno = EACCES;
  return -1;
}

ssize_t Connection::send(std::span<const std::byte> bytes) {
  if (guard_) return guard_->send(fd(), bytes);
  return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Connection::receive(std::span<std::byte> bytes) {
  if (guard_) return guard_->receive(fd(), bytes);
  return ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
}

ssize_t Connection::send(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (guard_) return guard_->send(fd(), first.empty() ? second : first);
  iovec parts[2] = {{const_cast<std::byte*>(first.data()), first.size()},
                    {const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Connection::receive(std::span<std::byte> first, std::span<std::byte> second) {
  if (guard_) {
    const ssize_t got = guard_->receive(fd(), first);
    if (got < static_cast<ssize_t>(first.size())) return got;
    const ssize_t more =
        guard_->receive(fd(), second);  // If it fails, the next call says so again.
    return more > 0 ? got + more : got;
  }
  iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return ::recvmsg(fd(), &message, MSG_DONTWAIT);
}

short Connection::waits_for(short wanted) const {
  const short handshake = guard_ ? guard_->handshake_waits_for() : short{0};
  return handshake != 0 ? handshake : wanted;
}

std::string Connection::explain(int error) const {
  if (guard_ && !guard_->why().empty()) return guard_->why();
  return std::generic_category().message(error);
}

bool Connection::is_cut(Duration limit) {
  const TimePoint now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookPause;
  tcp_info info{};
  socklen_t size = sizeof(info);
  // A socket of another family has no such state, and no way that could be cut.
  if (::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // If the peer does not read, nothing is under way: the kernel keeps the rest until there is room.
  return info.tcpi_unacked > 0 && info.tcpi_retransmits >= kSentAgain &&
         Duration(info.tcpi_last_ack_recv) >= limit;
}

void Connection::shut_down(int how) { (void)::shutdown(fd(), how); }

}  // namespace ddp::transport
