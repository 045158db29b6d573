#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/process/socket_diag.h"

namespace ddp {

// Tells whether a connection comes from another user of this machine. Any user can connect to a
// port, also of the loopback interface; the kernel knows who made the socket at the other end.
// Root may do anything anyway, so it counts as this process's own user. One thread.
//
// A process in another network namespace (a container with an address of its own) is another
// machine here. Users that a user namespace does not map all have one number (65534).
class UserGate {
 public:
  enum class Verdict {
    kOwnUser,
    kElsewhere,  // It comes from another machine.
    kOtherUser,
    // It comes from this machine, but the kernel does not know its other end: its address was
    // translated on the way.
    kUnknown,
    // The other end has closed already: who it was is not known any more. It may have sent bytes.
    kGone,
    kUnchecked,  // The kernel does not tell: see blind().
  };

  // Costs some 20 us; each judge() some 5 us.
  UserGate();

  // `connection`: an accepted TCP connection.
  Verdict judge(int connection);
  // The other end's user at the last judge() that was kOtherUser.
  uid_t other_user() const { return other_user_; }
  // Why the kernel does not tell whose connections are, for people. Old kernels and sandboxes
  // without netlink do not. Then all connections are kUnchecked.
  const std::optional<Error>& blind() const { return blind_; }

 private:
  Result<FoundSocket> find(const TcpEnds& ends);
  Result<void> try_out();
  bool stays_here(const TcpEnds& ends);

  UniqueFd sockets_;  // Netlink, for queries about sockets;
  UniqueFd routes_;   // and about routes.
  std::uint32_t number_ = 0;
  uid_t own_user_;
  uid_t other_user_ = 0;
  std::optional<Error> blind_;
};

// Whether the gate lets the connection in.
inline bool admits(UserGate::Verdict verdict) {
  using Verdict = UserGate::Verdict;
  return verdict == Verdict::kOwnUser || verdict == Verdict::kElsewhere ||
         verdict == Verdict::kUnchecked;
}

// Closes a TCP connection at once: what was sent is dropped, and the kernel keeps nothing of it.
void cut(UniqueFd connection);

// Whether the other end of a connected Unix socket belongs to this process's user, or to root. Any
// user may have taken a name, or may know it: /proc/net/unix lists all.
bool is_own_users(int unix_socket);

}  // namespace ddp
