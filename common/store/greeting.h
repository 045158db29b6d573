#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/socket.h"
#include "common/wire/c10d.h"

// The first exchange on a connection to a c10d server. It shows that the peer is such a server and
// which dialect it speaks: no version travels in this protocol, and a server closes the connection
// at what it does not know.
namespace ddp {

struct ServerKind {
  wire::c10d::Dialect dialect = wire::c10d::Dialect::kNewest;
  bool has_ping = true;  // Of kNewest: PyTorch 2.2 to 2.4 have no PING.
};

struct GreetedSocket {
  Socket socket;
  ServerKind kind;
};

// What a connection begins with before the greeting; empty: nothing.
using Introduction = std::function<Result<void>(Socket& socket, TimePoint deadline)>;

// One try. `known`: how the server was greeted before; otherwise `dialect`, if the user has said
// which; otherwise every dialect in turn, newest first. Failures are those of Socket::connect(),
// and
//   kPeerLost  the server closes at every greeting
//   kProtocol  the answer is not that of a TCP store
//   kTimeout   no answer
//   and those of `introduce`
Result<GreetedSocket> connect_and_greet(const std::string& host, int port,
                                        const std::optional<ServerKind>& known,
                                        const std::optional<wire::c10d::Dialect>& dialect,
                                        const Introduction& introduce, TimePoint deadline);

}  // namespace ddp
