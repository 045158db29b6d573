#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp {

// What the kernel is asked about TCP connections, and what it answers, as bytes of netlink(7).
// Nothing here makes a system call: user_gate.h does.

// A connection as one of its ends sees it. Addresses of IPv4 are in the first four bytes, also for
// a socket of IPv6. All in network byte order, except `interface`.
struct TcpEnds {
  int family = AF_UNSPEC;
  in6_addr local{};
  in6_addr remote{};
  in_port_t local_port = 0;
  in_port_t remote_port = 0;
  std::uint32_t interface = 0;  // Of link-local addresses.
};

// Nothing if the addresses are not of IP.
std::optional<TcpEnds> tcp_ends(const sockaddr_storage& local, const sockaddr_storage& remote);
// As the other end sees it.
TcpEnds other_way(const TcpEnds& ends);
bool is_loopback(const TcpEnds& ends);  // Whether `remote` is.

// Asks sock_diag(7) for the socket of this machine with these ends. `number` comes back in the
// answer.
std::string socket_query(const TcpEnds& ends, std::uint32_t number);
struct FoundSocket {
  std::uint8_t state = 0;   // TCP_ESTABLISHED and so on.
  uid_t user = 0;           // Who made it. Means nothing without an inode.
  std::uint32_t inode = 0;  // 0: no process has it open.
};
// kNotFound: there is none; kStale: the answer to another question; kIo: the kernel refused.
Result<FoundSocket> socket_answer(std::string_view bytes, std::uint32_t number);

// Asks rtnetlink(7) whether packets to `remote` stay on this machine. The failures are those of
// socket_answer().
std::string route_query(const TcpEnds& ends, std::uint32_t number);
Result<bool> route_answer(std::string_view bytes, std::uint32_t number);

}  // namespace ddp
