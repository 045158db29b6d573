#include "common/store/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/host_port.h"

namespace ddp::store {
namespace {

// How long recv() may block.
constexpr std::chrono::seconds kLongestReceive{1};
constexpr std::size_t kReadBytes = 64u << 10;
constexpr std::size_t kKeepBytes = 256u << 10;

std::string errno_text(int number) { return std::generic_category().message(number); }

// Returns the events that poll() reports; 0 at the deadline.
int poll_until(int fd, short events, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{fd, events, 0};
    // Long waits are cut, because poll() counts milliseconds in an int.
    const int slice = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
    const int count = ::poll(&entry, 1, slice);
    if (count > 0) return entry.revents;
    if (count < 0 && errno != EINTR) return POLLERR;
    if (Clock::now() >= deadline) return 0;
  }
}

// A port of the ephemeral range that nobody listens on can connect to itself.
bool is_connected_to_itself(int fd) {
  sockaddr_storage local{}, remote{};
  socklen_t local_size = sizeof(local), remote_size = sizeof(remote);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) return false;
  return local_size == remote_size && std::memcmp(&local, &remote, local_size) == 0;
}

void set_options(int fd) {
  const int on = 1, idle_seconds = 30;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
}

// Returns 0 or an errno.
int connect_one(const addrinfo& address, TimePoint deadline, UniqueFd& out) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  set_options(fd.get());
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (poll_until(fd.get(), POLLOUT, deadline) == 0) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  if (is_connected_to_itself(fd.get())) return ECONNREFUSED;
  // From here on only recv() blocks, and not for long.
  const timeval longest{kLongestReceive.count(), 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest));
  ::fcntl(fd.get(), F_SETFL, 0);
  out = std::move(fd);
  return 0;
}

}  // namespace

Result<Socket> Socket::connect(const std::string& host, int port, TimePoint deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return make_error(Errc::kNotFound, "host name '{}' does not resolve: {}", host,
                      ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  int last_errno = ECONNREFUSED;
  int left = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) ++left;
  // A firewall may drop what is sent to one of them. The next ones have their share of the time.
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next, --left) {
    UniqueFd fd;
    const TimePoint now = Clock::now();
    last_errno = connect_one(*address, now + (deadline - now) / left, fd);
    if (last_errno == 0) return Socket(std::move(fd));
  }
  return make_error(last_errno == ETIMEDOUT ? Errc::kTimeout : Errc::kPeerLost,
                    "cannot connect to {}: {}", host_and_port(host, port), errno_text(last_errno));
}

Result<void> Socket::write_all(std::string_view bytes, TimePoint deadline, bool* taken) {
  if (taken != nullptr) *taken = false;
  while (!bytes.empty()) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return make_error(Errc::kPeerLost, "the connection is lost: {}", errno_text(errno));
    }
    if (poll_until(fd_.get(), POLLOUT, deadline) == 0) {
      return make_error(Errc::kTimeout, "the peer does not read");
    }
  }
  if (taken != nullptr) *taken = true;
  return {};
}

Result<void> Socket::end_writing() {
  if (::shutdown(fd_.get(), SHUT_WR) == 0) return {};
  return make_error(Errc::kPeerLost, "the connection is lost: {}", errno_text(errno));
}

bool Socket::is_quiet() const {
  if (read_ < buffer_.size()) return false;
  char byte = 0;
  ssize_t count = 0;
  do {
    count = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

Result<bool> Socket::can_read(TimePoint deadline) {
  if (read_ < buffer_.size()) return true;
  return poll_until(fd_.get(), POLLIN, deadline) != 0;
}

Result<void> Socket::fill(TimePoint deadline) {
  if (read_ == buffer_.size()) {
    buffer_.clear();
    read_ = 0;
  }
  while (true) {
    std::array<char, kReadBytes> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    // Usually recv() alone waits, which costs one system call: SO_RCVTIMEO ends its wait now and
    // then. Near the deadline poll() comes first, because it is more exact.
    const bool is_near = deadline - Clock::now() < 2 * kLongestReceive;
    if (is_near && poll_until(fd_.get(), POLLIN, deadline) == 0) {
      return make_error(Errc::kTimeout, "no answer");
    }
    const ssize_t count = ::recv(fd_.get(), bytes.data(), bytes.size(), is_near ? MSG_DONTWAIT : 0);
    if (count > 0) {
      buffer_.append(bytes.data(), static_cast<std::size_t>(count));
      return {};
    }
    if (count == 0) return make_error(Errc::kPeerLost, "the peer closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return make_error(Errc::kPeerLost, "the connection is lost: {}", errno_text(errno));
    }
  }
}

Result<std::string> Socket::read_exactly(std::size_t count, TimePoint deadline) {
  while (buffer_.size() - read_ < count) {
    Result<void> filled = fill(deadline);
    if (!filled) return filled.error();
  }
  std::string out = buffer_.substr(read_, count);
  read_ += count;
  if (read_ == buffer_.size() && buffer_.capacity() > kKeepBytes) {
    // One large value must not hold its memory for the rest of the connection's life.
    buffer_ = std::string();
    read_ = 0;
  }
  return out;
}

Result<std::string> Socket::read_some(TimePoint deadline) {
  if (read_ == buffer_.size()) {
    Result<void> filled = fill(deadline);
    if (!filled) return filled.error();
  }
  return read_exactly(buffer_.size() - read_, deadline);
}

}  // namespace ddp::store
