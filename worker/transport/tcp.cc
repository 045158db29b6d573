#include "worker/transport/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "common/wait/wait_interrupt.h"
#include "worker/transport/endpoint.h"
#include "worker/transport/non_blocking.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp::transport {
namespace {

constexpr std::uint32_t kPreambleMagic = 0x4C504444;  // "DDPL"
constexpr std::uint32_t kPreambleVersion = 1;
enum Purpose : std::uint32_t { kData = 0, kControl = 1 };
constexpr std::byte kAccepted{0xA5};
constexpr std::byte kOtherEngine{0xE0};           // Plus the listener's EngineKind.
constexpr std::chrono::seconds kAddressTime{10};  // For each of several addresses.
constexpr std::string_view kOpenPorts =
    "open all TCP ports between the nodes (`ddp-run check` tests them)";

// The first bytes of a connection. The listener answers kAccepted or kOtherEngine, or closes it.
// Little-endian.
struct Preamble {
  std::uint32_t magic = kPreambleMagic;
  std::uint32_t version = kPreambleVersion;
  std::uint64_t token = 0;
  std::int64_t round = kNoRound;
  std::int32_t world_size = 0;
  std::int32_t connecting = -1;
  std::int32_t listening = -1;
  std::uint32_t purpose = kData;
  EngineKind engine = EngineKind::kTcp;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Preamble) == 48);

Preamble make_preamble(const LinkIdentity& identity, std::uint64_t token, Purpose purpose,
                       EngineKind engine) {
  Preamble preamble;
  preamble.engine = engine;
  preamble.token = token;
  preamble.round = identity.round;
  preamble.world_size = identity.world_size;
  preamble.connecting = identity.connecting;
  preamble.listening = identity.listening;
  preamble.purpose = purpose;
  return preamble;
}

// A connection whose preamble is not complete yet.
struct Visitor {
  Connection connection;
  std::array<std::byte, sizeof(Preamble)> bytes{};
  std::size_t received = 0;
};

enum class Visit { kIncomplete, kGone, kComplete };

Visit read_preamble(Visitor& visitor) {
  const ssize_t got =
      visitor.connection.receive(std::span(visitor.bytes).subspan(visitor.received));
  if (got < 0 && would_block(errno)) return Visit::kIncomplete;
  if (got <= 0) return Visit::kGone;
  visitor.received += static_cast<std::size_t>(got);
  return visitor.received == visitor.bytes.size() ? Visit::kComplete : Visit::kIncomplete;
}

Connection& connection_of(LinkConnections& connections, std::uint32_t purpose) {
  return purpose == kData ? connections.data : connections.control;
}

Traffic traffic_of(std::uint32_t purpose) {
  return purpose == kControl ? Traffic::kControl : Traffic::kData;
}

std::vector<Purpose> purposes_of(const LinkIdentity& identity) {
  return identity.has_control ? std::vector{kData, kControl} : std::vector{kData};
}

// A connection that a listener waits for.
struct Expected {
  std::size_t link;  // Index of its identity.
  Preamble preamble;
  Connection connection;
};

Error other_engine(const LinkIdentity& identity, EngineKind listening, EngineKind connecting) {
  return make_error(Errc::kMismatch,
                    "rank {} on node {} sends data over {}, but rank {} on node {} over {}: "
                    "DDP_LINK must choose the same engine on all nodes",
                    identity.listening, identity.listening_node, name_of(listening),
                    identity.connecting, identity.connecting_node, name_of(connecting));
}

bool complete(const std::vector<Expected>& expected) {
  return std::all_of(expected.begin(), expected.end(),
                     [](const Expected& each) { return static_cast<bool>(each.connection); });
}

Error not_come(const std::vector<LinkIdentity>& identities, const std::vector<Expected>& expected) {
  std::string missing;
  std::size_t named = identities.size();
  for (const Expected& each : expected) {
    if (each.connection || each.link == named) continue;
    named = each.link;
    missing += fmt::format("{}rank {} on node {}", missing.empty() ? "" : ", ",
                           identities[named].connecting, identities[named].connecting_node);
  }
  return make_error(Errc::kTimeout, "{} did not connect to rank {}; if it runs, {}", missing,
                    identities[0].listening, kOpenPorts);
}

// Keeps an expected connection. Returns the engine that its other end wants if it is not ours.
std::optional<EngineKind> admit(Visitor& visitor, Expected& expected, TimePoint deadline) {
  Preamble preamble;
  std::memcpy(&preamble, visitor.bytes.data(), sizeof(preamble));
  const EngineKind theirs = std::exchange(preamble.engine, expected.preamble.engine);
  if (expected.connection || std::memcmp(&preamble, &expected.preamble, sizeof(preamble)) != 0)
    return {};
  if (theirs != preamble.engine) {
    const std::byte answer = kOtherEngine | static_cast<std::byte>(preamble.engine);
    (void)send_all(visitor.connection, {&answer, 1}, deadline);
    return theirs;
  }
  if (send_all(visitor.connection, {&kAccepted, 1}, deadline))
    expected.connection = std::move(visitor.connection);
  return {};
}

Error cannot_connect(const LinkIdentity& identity, const Error& why) {
  const std::string remedy =
      why.code == Errc::kTimeout ? fmt::format("; {}", kOpenPorts) : std::string();
  return make_error(why.code, "rank {} cannot connect to rank {} on node {}: {}{}",
                    identity.connecting, identity.listening, identity.listening_node, why.message,
                    remedy);
}

Result<Connection> open_connection(const Endpoint& endpoint, const LinkIdentity& identity,
                                   const Preamble& preamble, const LinkGuard* guard,
                                   TimePoint deadline, Duration tell_after) {
  Error last = make_error(Errc::kInvalidArgument, "it published no address");
  for (const std::string& address : endpoint.addresses) {
    // An address that swallows packets must not use up the time of the others.
    const bool alone = endpoint.addresses.size() == 1;
    const TimePoint limit = alone ? deadline : std::min(deadline, Clock::now() + kAddressTime);
    const TimePoint first = alone ? std::min(limit, Clock::now() + tell_after) : limit;
    auto fd = connect_socket(address, endpoint.port, first);
    // A firewall may drop packets without a sign. The peer listens, since its endpoint is known.
    if (!fd && fd.error().code == Errc::kTimeout && first < limit) {
      fmt::print(stderr, "ddp: {}; still trying\n", cannot_connect(identity, fd.error()).message);
      fd = connect_socket(address, endpoint.port, limit);
    }
    if (!fd) {
      last = fd.error();
      continue;
    }
    set_connection_options(fd->get(), traffic_of(preamble.purpose));
    Connection connection = connecting(guard, std::move(*fd));
    std::byte answer{};
    auto exchanged = send_all(connection, std::as_bytes(std::span(&preamble, 1)), deadline);
    if (exchanged) exchanged = receive_all(connection, {&answer, 1}, deadline);
    if (exchanged && answer == kAccepted) return connection;
    if (exchanged && (answer & std::byte{0xF0}) == kOtherEngine) {
      return other_engine(identity, static_cast<EngineKind>(answer & std::byte{0x0F}),
                          preamble.engine);
    }
    last = exchanged
               ? make_error(Errc::kProtocol, "{} gave a wrong answer", address)
               : Error{exchanged.error().code, fmt::format("{} port {}: {}", address, endpoint.port,
                                                           exchanged.error().message)};
  }
  return last;
}

}  // namespace

Result<std::unique_ptr<TcpListener>> TcpListener::open(std::shared_ptr<const LinkGuard> guard) {
  auto socket = listen_anywhere();
  if (!socket) return socket.error();
  auto port = local_port(socket->get());
  if (!port) return port.error();
  return std::unique_ptr<TcpListener>(
      new TcpListener(std::move(*socket), *port, random_token(), std::move(guard)));
}

std::string TcpListener::endpoint(const std::vector<std::string>& addresses) const {
  return Endpoint{addresses, port_, token_}.text();
}

Result<std::vector<LinkConnections>> TcpListener::accept(
    const std::vector<LinkIdentity>& identities, TimePoint deadline, EngineKind engine) {
  std::vector<Expected> expected;
  for (std::size_t i = 0; i < identities.size(); ++i) {
    for (const Purpose purpose : purposes_of(identities[i])) {
      expected.push_back({i, make_preamble(identities[i], token_, purpose, engine), {}});
    }
  }
  std::vector<Visitor> visitors;
  const TimePoint since = Clock::now();
  while (!complete(expected)) {
    std::vector<pollfd> entries{{fd_.get(), POLLIN, 0}};
    for (const Visitor& visitor : visitors) {
      const Connection& connection = visitor.connection;
      entries.push_back({connection.fd(), connection.waits_for(POLLIN), 0});
    }
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    if (left <= 0) return not_come(identities, expected);
    if (WaitInterrupt::raised()) return make_error(Errc::kAborted, "the round is over");
    const std::int64_t longest =
        WaitInterrupt::set() ? WaitInterrupt::until_look(since).count() : 1000;
    ::poll(entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(left, longest)));
    if ((entries[0].revents & POLLIN) != 0) {
      for (UniqueFd& fd : accept_some(fd_.get(), gate_))
        visitors.push_back({accepting(guard_.get(), std::move(fd))});
    }
    for (auto visitor = visitors.begin(); visitor != visitors.end();) {
      const Visit visit = read_preamble(*visitor);
      if (visit == Visit::kIncomplete) {
        ++visitor;
        continue;
      }
      for (std::size_t i = 0; visit == Visit::kComplete && i < expected.size(); ++i) {
        if (const auto theirs = admit(*visitor, expected[i], deadline))
          return other_engine(identities[expected[i].link], engine, *theirs);
        if (expected[i].connection && !visitor->connection) break;
      }
      visitor = visitors.erase(visitor);
    }
  }
  std::vector<LinkConnections> found(identities.size());
  for (Expected& each : expected) {
    set_connection_options(each.connection.fd(), traffic_of(each.preamble.purpose));
    connection_of(found[each.link], each.preamble.purpose) = std::move(each.connection);
  }
  return found;
}

Result<LinkConnections> connect_link(const std::string& endpoint_text, const LinkIdentity& identity,
                                     TimePoint deadline, EngineKind engine, const LinkGuard* guard,
                                     Duration tell_after) {
  auto endpoint = parse_endpoint(endpoint_text);
  if (!endpoint) return endpoint.error();
  LinkConnections found;
  for (const Purpose purpose : purposes_of(identity)) {
    const Preamble preamble = make_preamble(identity, endpoint->token, purpose, engine);
    auto connection = open_connection(*endpoint, identity, preamble, guard, deadline, tell_after);
    if (!connection) {
      if (connection.error().code == Errc::kMismatch) return connection.error();
      return cannot_connect(identity, connection.error());
    }
    connection_of(found, purpose) = std::move(*connection);
  }
  return found;
}

}  // namespace ddp::transport
