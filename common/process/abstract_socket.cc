#include "common/process/abstract_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

namespace ddp {
namespace {

// The address begins with NUL, which makes it abstract, and has no terminator.
template <typename Call>
int with_address(std::string_view name, Call call) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.begin(), size, address.sun_path + 1);
  return call(reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size));
}

}  // namespace

int bind_abstract(int fd, std::string_view name) {
  return with_address(
      name, [&](const sockaddr* address, socklen_t size) { return ::bind(fd, address, size); });
}

int connect_abstract(int fd, std::string_view name) {
  return with_address(
      name, [&](const sockaddr* address, socklen_t size) { return ::connect(fd, address, size); });
}

}  // namespace ddp
