#include "common/process/user_gate.h"

#include <linux/netlink.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddp {
namespace {

UniqueFd open_netlink(int protocol) {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
  // Connected to the kernel, so that nobody else can answer.
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (socket &&
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel)) != 0) {
    return UniqueFd();
  }
  return socket;
}

Error errno_error(std::string_view what) {
  return make_error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

// The kernel answers before send() returns.
template <typename Answer>
auto ask(int netlink, const std::string& query, std::uint32_t number, Answer answer)
    -> decltype(answer(std::string_view(), number)) {
  if (::send(netlink, query.data(), query.size(), MSG_NOSIGNAL) < 0) return errno_error("netlink");
  alignas(nlmsghdr) std::array<char, 2048> bytes;
  for (;;) {
    const ssize_t size = ::recv(netlink, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0) return errno_error("netlink");
    auto result = answer({bytes.data(), static_cast<std::size_t>(size)}, number);
    if (result || result.error().code != Errc::kStale) return result;
  }
}

// The ends of a connection, or nothing if it is over.
std::optional<TcpEnds> ends_of(int connection) {
  sockaddr_storage local{};
  sockaddr_storage remote{};
  socklen_t local_size = sizeof(local);
  socklen_t remote_size = sizeof(remote);
  if (::getsockname(connection, reinterpret_cast<sockaddr*>(&local), &local_size) != 0 ||
      ::getpeername(connection, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) {
    return std::nullopt;
  }
  return tcp_ends(local, remote);
}

std::uint8_t state_of(int connection) {
  std::uint8_t state = TCP_CLOSE;  // The first byte of a tcp_info.
  socklen_t size = sizeof(state);
  ::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &state, &size);
  return state;
}

// Whether a process has this end of a connection open. Only then does the kernel say who made it:
// for others it says root.
bool is_in_use(const FoundSocket& socket) {
  return socket.inode != 0 && (socket.state == TCP_ESTABLISHED || socket.state == TCP_FIN_WAIT1 ||
                               socket.state == TCP_FIN_WAIT2 || socket.state == TCP_CLOSE_WAIT);
}

}  // namespace

UserGate::UserGate() : own_user_(::geteuid()) {
  if (auto works = try_out(); !works) blind_ = works.error();
}

// A kernel that cannot tell says that there is no such socket, so it is asked for one that is
// there.
Result<void> UserGate::try_out() {
  sockets_ = open_netlink(NETLINK_SOCK_DIAG);
  routes_ = open_netlink(NETLINK_ROUTE);
  if (!sockets_ || !routes_) return errno_error("netlink");
  const UniqueFd known(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  struct stat info {};
  if (!known || ::listen(known.get(), 1) != 0 || ::fstat(known.get(), &info) != 0 ||
      ::getsockname(known.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    return errno_error("a socket to try it with");
  }
  sockaddr_storage nobody{};
  nobody.ss_family = AF_INET;
  const auto found = find(*tcp_ends(local, nobody));
  if (!found) return found.error();
  if (found->inode != info.st_ino) return make_error(Errc::kProtocol, "sock_diag is wrong");
  return {};
}

Result<FoundSocket> UserGate::find(const TcpEnds& ends) {
  ++number_;
  return ask(sockets_.get(), socket_query(ends, number_), number_, socket_answer);
}

// The loopback addresses, and the others of this machine.
bool UserGate::stays_here(const TcpEnds& ends) {
  if (is_loopback(ends) || std::memcmp(&ends.local, &ends.remote, sizeof(ends.local)) == 0)
    return true;
  ++number_;
  const auto local = ask(routes_.get(), route_query(ends, number_), number_, route_answer);
  return local && *local;
}

UserGate::Verdict UserGate::judge(int connection) {
  if (blind_) return Verdict::kUnchecked;
  const auto ends = ends_of(connection);
  if (!ends) return Verdict::kGone;
  const auto found = find(other_way(*ends));
  if (found && !is_in_use(*found)) return Verdict::kGone;
  if (!found && !stays_here(*ends)) return Verdict::kElsewhere;
  const std::uint8_t state = state_of(connection);
  if (!found) return state == TCP_ESTABLISHED ? Verdict::kUnknown : Verdict::kGone;
  // If this end was reset, then what was found may be another connection, which got the same port.
  if (state == TCP_CLOSE) return Verdict::kGone;
  if (found->user == own_user_ || found->user == 0) return Verdict::kOwnUser;
  other_user_ = found->user;
  return Verdict::kOtherUser;
}

void cut(UniqueFd connection) {
  const linger at_once{1, 0};
  ::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

bool is_own_users(int unix_socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace ddp
