#include "agent/process/store_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <utility>

namespace ddp::agent {
namespace {

void set(const UniqueFd& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof(value));
}

// Returns the port, or 0 with errno.
template <typename Address>
int bind_any(const UniqueFd& socket, Address address) {
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (::bind(socket.get(), generic, size) != 0) return 0;
  if (::getsockname(socket.get(), generic, &size) != 0) return 0;
  in_port_t port = 0;  // At the same offset in both families.
  std::memcpy(&port, reinterpret_cast<const char*>(&address) + offsetof(sockaddr_in, sin_port),
              sizeof(port));
  return ntohs(port);
}

}  // namespace

// On all addresses of both families, as PyTorch's server listens; only of IPv4 if there is no IPv6.
StorePort::Reserved StorePort::reserve() {
  UniqueFd both(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (both) {
    set(both, SOL_SOCKET, SO_REUSEADDR, 1);
    set(both, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    if (const int port = bind_any(both, address); port > 0) return {std::move(both), port};
  }
  UniqueFd ipv4(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!ipv4) return {};
  set(ipv4, SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const int port = bind_any(ipv4, address);
  return {std::move(ipv4), port};
}

int StorePort::next() {
  if (next_.port == 0) next_ = reserve();
  return next_.port;
}

void StorePort::use(int port) {
  used_ = {};
  if (port == next_.port) used_ = std::exchange(next_, {});
}

}  // namespace ddp::agent
