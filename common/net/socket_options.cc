#include "common/net/socket_options.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace ddp::net {
namespace {

void set_int(int fd, int level, int name, long value) {
  const int option = static_cast<int>(value);
  ::setsockopt(fd, level, name, &option, sizeof(option));
}

}  // namespace

void set_close_on_exec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

void set_stream_options(int fd, const StreamOptions& options) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_close_on_exec(fd);
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  const long idle = std::max<long>(1, options.keepalive_idle.count());
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max<long>(1, idle / 3));
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (options.user_timeout.count() > 0) {
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, options.user_timeout.count());
  }
  if (options.retransmits_steadily) set_int(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
}

std::string address_text(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace ddp::net
