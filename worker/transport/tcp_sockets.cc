#include "worker/transport/tcp_sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <net/if.h>

#include "common/wait/deadline.h"
#include "common/wait/wait_interrupt.h"
#include "worker/transport/non_blocking.h"
#include "worker/transport/tcp.h"

namespace ddp::transport {
namespace {

constexpr int kBacklog = 1024;
constexpr int kAcceptAtOnce = 64;  // So that a flood of connections does not hold up what is there.
constexpr int kUserTimeoutMs = 30'000;
// Limits the bytes in flight between two sockets of one host, so that they stay in the caches. The
// kernel would let them grow to megabytes, which go out to memory and back: 20 MB then take about
// twice the time. The limit would slow a real network down, so there the kernel chooses.
constexpr int kOnHostSendBytes = 512 << 10;

std::string error_text(int number) { return std::generic_category().message(number); }

struct AddrInfoDeleter {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};
using AddrInfo = std::unique_ptr<addrinfo, AddrInfoDeleter>;

Result<AddrInfo> look_up(const std::string& host, int port, int socket_type, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  hints.ai_flags = flags;
  addrinfo* info = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &info);
  if (status != 0) return make_error(Errc::kNotFound, "{}: {}", host, ::gai_strerror(status));
  return AddrInfo(info);
}

Result<void> wait_for(int fd, int events, TimePoint deadline) {
  const TimePoint since = Clock::now();
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    if (left <= 0) return make_error(Errc::kTimeout, "no answer in time");
    if (WaitInterrupt::raised()) return make_error(Errc::kAborted, "the round is over");
    pollfd entry{fd, static_cast<short>(events), 0};
    const int ready =
        ::poll(&entry, 1, milliseconds_until(WaitInterrupt::next_look(since, deadline)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return make_error(Errc::kIo, "{}", error_text(errno));
  }
}

// Whether the peer has this end's address.
bool stays_on_host(int fd) {
  sockaddr_storage ends[2]{};
  socklen_t lengths[2] = {sizeof(ends[0]), sizeof(ends[1])};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ends[0]), &lengths[0]) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&ends[1]), &lengths[1]) != 0) {
    return false;
  }
  if (ends[0].ss_family != ends[1].ss_family) return false;
  if (ends[0].ss_family == AF_INET) {
    const auto address = [&](int end) {
      return reinterpret_cast<const sockaddr_in*>(&ends[end])->sin_addr.s_addr;
    };
    return address(0) == address(1);
  }
  const auto address = [&](int end) {
    return &reinterpret_cast<const sockaddr_in6*>(&ends[end])->sin6_addr;
  };
  return ends[0].ss_family == AF_INET6 &&
         std::memcmp(address(0), address(1), sizeof(in6_addr)) == 0;
}

std::string numeric_address(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return text;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// The local address of the route to `host`. Connecting a datagram socket sends nothing.
std::string address_toward(const std::string& host, int port, bool& loopback) {
  auto info = look_up(host, port, SOCK_DGRAM, 0);
  if (!info) return {};
  for (const addrinfo* each = info->get(); each != nullptr; each = each->ai_next) {
    const UniqueFd fd(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    if (::getsockname(fd.get(), address, &length) != 0) continue;
    loopback = is_loopback(address);
    return numeric_address(address, length);
  }
  return {};
}

void add_interface_addresses(std::vector<std::string>& addresses) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || is_loopback(each->ifa_addr)) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const std::string text = numeric_address(each->ifa_addr, length);
    if (!text.empty() && std::find(addresses.begin(), addresses.end(), text) == addresses.end()) {
      addresses.push_back(text);
    }
  }
  ::freeifaddrs(list);
}

Result<UniqueFd> listen_on(const sockaddr* address, socklen_t length) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int off = 0;
  if (fd && address->sa_family == AF_INET6)
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (!fd || ::bind(fd.get(), address, length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return make_error(Errc::kIo, "cannot listen for other workers: {}", error_text(errno));
  }
  return fd;
}

}  // namespace

Result<UniqueFd> listen_anywhere() {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  auto fd = listen_on(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  if (fd) return fd;
  // A kernel without IPv6.
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  return listen_on(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
}

std::vector<UniqueFd> accept_some(int listener, std::optional<UserGate>& gate) {
  std::vector<UniqueFd> accepted;
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    if (!gate) gate.emplace();
    const UserGate::Verdict verdict = gate->judge(fd.get());
    // A rank may have sent its last message and ended. What it says first shows whether it is one.
    if (admits(verdict) || verdict == UserGate::Verdict::kGone) {
      accepted.push_back(std::move(fd));
    } else {
      cut(std::move(fd));
    }
  }
  return accepted;
}

Result<int> local_port(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return make_error(Errc::kIo, "getsockname: {}", error_text(errno));
  }
  const auto port = storage.ss_family == AF_INET6
                        ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                        : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port;
  return static_cast<int>(ntohs(port));
}

Result<UniqueFd> begin_connect(const std::string& address, int port) {
  auto info = look_up(address, port, SOCK_STREAM, AI_NUMERICHOST);
  if (!info) return info.error();
  UniqueFd fd(::socket((*info)->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return make_error(Errc::kIo, "socket: {}", error_text(errno));
  if (::connect(fd.get(), (*info)->ai_addr, (*info)->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return make_error(Errc::kPeerLost, "{} port {}: {}", address, port, error_text(errno));
  }
  return fd;
}

Result<void> finish_connect(int fd, const std::string& address, int port) {
  int number = 0;
  socklen_t length = sizeof(number);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length) != 0 || number != 0) {
    return make_error(Errc::kPeerLost, "{} port {}: {}", address, port, error_text(number));
  }
  return {};
}

Result<UniqueFd> connect_socket(const std::string& address, int port, TimePoint deadline) {
  auto fd = begin_connect(address, port);
  if (!fd) return fd;
  auto ready = wait_for(fd->get(), POLLOUT, deadline);
  if (!ready)
    return make_error(Errc::kTimeout, "{} port {}: {}", address, port, ready.error().message);
  if (auto connected = finish_connect(fd->get(), address, port); !connected)
    return connected.error();
  return fd;
}

Result<void> send_all(Connection& connection, std::span<const std::byte> bytes,
                      TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = connection.send(bytes);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (would_block(errno)) {
      if (auto ready = wait_for(connection.fd(), connection.waits_for(POLLOUT), deadline); !ready)
        return ready;
    } else {
      return make_error(Errc::kPeerLost, "{}", connection.explain(errno));
    }
  }
  return {};
}

Result<void> receive_all(Connection& connection, std::span<std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t received = connection.receive(bytes);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(received));
    } else if (received < 0 && would_block(errno)) {
      if (auto ready = wait_for(connection.fd(), connection.waits_for(POLLIN), deadline); !ready)
        return ready;
    } else {
      return make_error(Errc::kPeerLost, "{}",
                        received == 0 ? "it closed the connection" : connection.explain(errno));
    }
  }
  return {};
}

void set_connection_options(int fd, Traffic traffic) {
  const int on = 1;
  const int idle_s = 10;
  const int interval_s = 5;
  const int probes = 4;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (stays_on_host(fd)) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kOnHostSendBytes, sizeof(kOnHostSendBytes));
  }
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  // The kernel would end a connection for data, too, whose other end reads nothing for so long: a
  // rank that computes.
  if (traffic == Traffic::kControl)
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
}

std::vector<std::string> reachable_addresses(const std::string& host, int port) {
  std::vector<std::string> addresses;
  bool loopback = false;
  const std::string toward = address_toward(host, port, loopback);
  if (!toward.empty()) addresses.push_back(toward);
  if (toward.empty() || loopback) add_interface_addresses(addresses);
  return addresses;
}

}  // namespace ddp::transport
