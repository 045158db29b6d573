#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ddp::test {

// A listening socket on a free port of the loopback interface that accepts no connection by itself.
class ListeningSocket {
 public:
  // With AF_INET6 at ::1, or at all addresses of both families.
  explicit ListeningSocket(int family = AF_INET, bool all = false)
      : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = all ? in6addr_any : in6addr_loopback;
    const bool is_v4 = family == AF_INET;
    socklen_t size = is_v4 ? sizeof(v4) : sizeof(v6);
    auto* generic = is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
    if (fd_ < 0 || ::bind(fd_, generic, size) != 0 || ::listen(fd_, 64) != 0 ||
        ::getsockname(fd_, generic, &size) != 0) {
      throw std::runtime_error("no listening socket");
    }
    port_ = ntohs(is_v4 ? v4.sin_port : v6.sin6_port);
  }
  ~ListeningSocket() { ::close(fd_); }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  int fd() const { return fd_; }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

// Whether no other test has the port. It is this process's from now on; keeps a descriptor.
inline bool reserve_port(int port) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "ddp-test-port-" + std::to_string(port);
  text.copy(name.sun_path + 1, text.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const int kept = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (::bind(kept, reinterpret_cast<sockaddr*>(&name), size) == 0) return true;
  ::close(kept);
  return false;
}

// A free port, for a program that must be told one. No other test gets it while this process lives,
// since an abstract socket has its number as a name; jobs.py does the same. The port is below the
// rendezvous' default, and below those that the system gives to connections.
inline int free_port() {
  static int next = 10'000 + (::getpid() * 97) % 19'000;
  for (int attempt = 0; attempt < 19'000; ++attempt) {
    next = next >= 29'000 ? 10'000 : next + 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(next));
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_free = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    ::close(probe);
    if (is_free && reserve_port(next)) return next;
  }
  throw std::runtime_error("no free port");
}

}  // namespace ddp::test
