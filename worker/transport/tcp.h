#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/process/user_gate.h"
#include "worker/transport/connection.h"
#include "worker/transport/engine_kind.h"
#include "worker/transport/link_guard.h"

namespace ddp::transport {

// Which link a connection is for. A connection is refused unless both ends agree on all of it. So
// no connection of an older round, of another job or of a stranger becomes part of a group.
struct LinkIdentity {
  Round round = kNoRound;
  int world_size = 0;
  Rank connecting = -1;
  int connecting_node = -1;
  Rank listening = -1;
  int listening_node = -1;
  bool has_control = true;  // Whether the link has a control connection.
};

struct LinkConnections {
  Connection data;
  Connection control;  // If the link has one.
};

// The end of a link that waits for the other one. Blocking, with deadlines; one thread.
class TcpListener {
 public:
  // Listens on a port that the system picks, on all addresses. `guard`: of all its connections, may
  // be null.
  static Result<std::unique_ptr<TcpListener>> open(
      std::shared_ptr<const LinkGuard> guard = nullptr);

  // Where to reach it, for connect_link(): all the addresses, the port and a random token.
  std::string endpoint(const std::vector<std::string>& addresses) const;

  // Accepts the connections of each link, in any order of arrival; element i belongs to
  // identities[i]. Turns other connections away. kTimeout names the ranks that did not connect,
  // kMismatch a rank that does not want `engine`.
  Result<std::vector<LinkConnections>> accept(const std::vector<LinkIdentity>& identities,
                                              TimePoint deadline,
                                              EngineKind engine = EngineKind::kTcp);

 private:
  TcpListener(UniqueFd fd, int port, std::uint64_t token, std::shared_ptr<const LinkGuard> guard)
      : fd_(std::move(fd)), port_(port), token_(token), guard_(std::move(guard)) {}

  UniqueFd fd_;
  int port_;
  std::uint64_t token_;
  std::shared_ptr<const LinkGuard> guard_;
  std::optional<UserGate> gate_;
};

// Tries the endpoint's addresses in turn until the deadline. kTimeout or kStale names the rank and
// what happened last. engine: what carries the data. guard: as the listener's. tell_after: if there
// is one address and nothing comes from it for so long, standard error says so, once.
Result<LinkConnections> connect_link(const std::string& endpoint, const LinkIdentity& identity,
                                     TimePoint deadline, EngineKind engine = EngineKind::kTcp,
                                     const LinkGuard* guard = nullptr,
                                     Duration tell_after = Duration{10'000});

// Numeric addresses at which other machines may reach this one, best first: the address that
// packets to `host` leave from, and if that is a loopback address, those of the other interfaces
// too.
std::vector<std::string> reachable_addresses(const std::string& host, int port);

}  // namespace ddp::transport
