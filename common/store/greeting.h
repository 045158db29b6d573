#pragma once

#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/socket.h"
#include "common/wire/c10d.h"

// The first exchange on a connection to a c10d server. It shows that the peer is such a server and
// which dialect it speaks. The protocol has no version number, and a server closes the connection
// at an unknown request.
namespace ddp::store {

struct ServerKind {
  wire::c10d::Dialect dialect = wire::c10d::Dialect::kNewest;
  bool has_ping = true;  // For kNewest: PyTorch 2.2 to 2.4 have no PING.
};

struct GreetedSocket {
  Socket socket;
  ServerKind kind;
};

// One attempt. Uses `known`, how the server was greeted before. If that is empty, it uses
// `dialect`, which the user has named. If both are empty, it tries every dialect, the newest first.
// Failures are those of Socket::connect(), and
//   kPeerLost  the server closes at every greeting
//   kProtocol  the answer is not that of a TCP store
//   kTimeout   no answer
Result<GreetedSocket> connect_and_greet(const std::string& host, int port,
                                        const std::optional<ServerKind>& known,
                                        const std::optional<wire::c10d::Dialect>& dialect,
                                        TimePoint deadline);

}  // namespace ddp::store
