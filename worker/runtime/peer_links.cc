#include "worker/runtime/peer_links.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/endpoint.h"
#include "worker/transport/link_guard.h"
#include "worker/transport/non_blocking.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp::runtime {
namespace {

constexpr Duration kFirstPause{1};
constexpr Duration kLongestPause{50};
constexpr std::chrono::seconds kAddressTime{10};  // An address may swallow packets.
constexpr std::chrono::seconds kStoreTime{5};

std::string key_of(const Meeting& meeting, Rank rank) {
  return fmt::format("{}/p2p/{}", meeting.prefix, rank);
}

}  // namespace

void PeerLinks::want(Rank peer) {
  if (!wanted_.try_emplace(peer).second) return;
  pause_ = kFirstPause;
  next_attempt_ = TimePoint{};
}

Outcome PeerLinks::step(std::vector<Connected>& connected) {
  // No system call if there is nothing to do: this is called in busy loops.
  if (wanted_.empty() && !knocked_) return {};
  const TimePoint now = Clock::now();
  const bool due = !wanted_.empty() && now >= next_attempt_;
  if (due) {
    if (!meeting_.store) {
      return Failure{Errc::kInvalidArgument, -1,
                     fmt::format("rank {} cannot reach rank {} on another node: this group has no "
                                 "store through which they could meet",
                                 rank_, wanted_.begin()->first)};
    }
    if (auto failure = listen()) return failure;
    pause_ = std::min(2 * pause_, kLongestPause);
    next_attempt_ = now + pause_;
  }
  for (auto each = wanted_.begin(); each != wanted_.end();) {
    auto& [peer, attempt] = *each;
    if (peer > rank_ && due && attempt.addresses.empty()) {
      if (auto failure = look_up(peer, attempt)) return failure;
    }
    if (peer > rank_ && try_connect(peer, attempt, due)) {
      connected.push_back({peer, std::move(attempt.connection)});
      each = wanted_.erase(each);
    } else {
      ++each;
    }
  }
  accept(connected);
  if (wanted_.empty()) next_attempt_ = TimePoint::max();
  return {};
}

// Listens only if a lower rank is wanted.
Outcome PeerLinks::listen() {
  if (listener_ || wanted_.begin()->first > rank_) return {};
  const std::unique_lock in_use(*meeting_.in_use, std::try_to_lock);
  if (!in_use) return {};  // Try again at the next attempt.
  auto socket = transport::listen_anywhere();
  if (!socket) return Failure{socket.error().code, rank_, socket.error().message};
  auto port = transport::local_port(socket->get());
  if (!port) return Failure{port.error().code, rank_, port.error().message};
  token_ = transport::random_token();
  const transport::Endpoint endpoint{meeting_.addresses, *port, token_};
  auto set = meeting_.store->set(key_of(meeting_, rank_), endpoint.text());
  if (!set) return Failure{set.error().code, -1, set.error().message};
  listener_ = std::move(*socket);
  return {};
}

Outcome PeerLinks::look_up(Rank peer, Attempt& attempt) {
  const std::unique_lock in_use(*meeting_.in_use, std::try_to_lock);
  if (!in_use) return {};
  const std::string key = key_of(meeting_, peer);
  auto there = meeting_.store->check({key});
  if (!there) return Failure{there.error().code, -1, there.error().message};
  if (!*there) return {};
  auto text = meeting_.store->get(key, kStoreTime);
  if (!text) return Failure{text.error().code, -1, text.error().message};
  auto endpoint = transport::parse_endpoint(*text);
  if (!endpoint) return Failure{endpoint.error().code, peer, endpoint.error().message};
  attempt.addresses = std::move(endpoint->addresses);
  attempt.port = endpoint->port;
  attempt.token = endpoint->token;
  return {};
}

void PeerLinks::begin_connect(Attempt& attempt) {
  auto fd = ddp::transport::begin_connect(attempt.addresses[attempt.address], attempt.port);
  if (fd) {
    attempt.connection = transport::connecting(meeting_.guard.get(), std::move(*fd));
    attempt.is_connected = false;
    attempt.greeted = 0;
    attempt.limit = Clock::now() + kAddressTime;
  } else {
    attempt.last = fd.error().message;
    attempt.address = (attempt.address + 1) % attempt.addresses.size();
  }
}

// Connects and greets as far as that does not block.
Result<void> PeerLinks::go_on(Rank peer, Attempt& attempt) {
  transport::Connection& connection = attempt.connection;
  const std::string& address = attempt.addresses[attempt.address];
  if (!attempt.is_connected) {
    pollfd entry{connection.fd(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return {};
    auto result = transport::finish_connect(connection.fd(), address, attempt.port);
    if (!result) return result;
    transport::set_connection_options(connection.fd(), transport::Traffic::kData);
    attempt.is_connected = true;
  }
  Hello hello;
  hello.token = attempt.token;
  hello.round = round_;
  hello.world_size = world_size_;
  hello.connecting = rank_;
  hello.listening = peer;
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  while (attempt.greeted < bytes.size()) {
    const ssize_t sent = connection.send(bytes.subspan(attempt.greeted));
    if (sent < 0 && transport::would_block(errno)) return {};
    if (sent < 0) {
      return make_error(Errc::kPeerLost, "{} port {}: {}", address, attempt.port,
                        connection.explain(errno));
    }
    attempt.greeted += static_cast<std::size_t>(sent);
  }
  return {};
}

// Returns true once the connection exists and the peer knows whose it is.
bool PeerLinks::try_connect(Rank peer, Attempt& attempt, bool due) {
  if (attempt.addresses.empty()) return false;
  if (!attempt.connection && due) begin_connect(attempt);
  if (!attempt.connection) return false;
  auto result = go_on(peer, attempt);
  if (result && attempt.greeted == sizeof(Hello)) return true;
  if (result && Clock::now() < attempt.limit) return false;
  attempt.last = result ? fmt::format("{} port {}: no answer", attempt.addresses[attempt.address],
                                      attempt.port)
                        : result.error().message;
  attempt.connection = {};
  attempt.address = (attempt.address + 1) % attempt.addresses.size();
  return false;
}

void PeerLinks::accept(std::vector<Connected>& connected) {
  knocked_ = false;
  if (!listener_) return;
  for (UniqueFd& fd : transport::accept_some(listener_.get(), gate_))
    visitors_.push_back({transport::accepting(meeting_.guard.get(), std::move(fd)), {}, 0});
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    const Greeting greeting = read_hello(*visitor);
    if (greeting == Greeting::kIncomplete) {
      ++visitor;
      continue;
    }
    const Rank peer = visitor->hello.connecting;
    // Accept unwanted ranks too: they may have seen the endpoint published for another rank.
    if (greeting == Greeting::kWelcome && accepted_.insert(peer).second) {
      transport::set_connection_options(visitor->connection.fd(), transport::Traffic::kData);
      connected.push_back({peer, std::move(visitor->connection)});
      wanted_.erase(peer);
    }
    visitor = visitors_.erase(visitor);
  }
}

PeerLinks::Greeting PeerLinks::read_hello(Visitor& visitor) const {
  const auto bytes = std::as_writable_bytes(std::span(&visitor.hello, 1));
  if (visitor.received < sizeof(Hello)) {
    const ssize_t got = visitor.connection.receive(bytes.subspan(visitor.received));
    if (got < 0 && transport::would_block(errno)) return Greeting::kIncomplete;
    if (got <= 0) return Greeting::kRefused;
    visitor.received += static_cast<std::size_t>(got);
    if (visitor.received < sizeof(Hello)) return Greeting::kIncomplete;
  }
  Hello expected;
  expected.token = token_;
  expected.round = round_;
  expected.world_size = world_size_;
  expected.connecting = visitor.hello.connecting;
  expected.listening = rank_;
  const bool same = std::memcmp(bytes.data(), &expected, sizeof(Hello)) == 0;
  const bool lower = expected.connecting >= 0 && expected.connecting < rank_;
  return same && lower ? Greeting::kWelcome : Greeting::kRefused;
}

void PeerLinks::add_poll_entries(std::vector<pollfd>& entries) const {
  if (listener_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) {
    const transport::Connection& connection = visitor.connection;
    entries.push_back({connection.fd(), connection.waits_for(POLLIN), 0});
  }
  for (const auto& [peer, attempt] : wanted_) {
    const transport::Connection& connection = attempt.connection;
    if (!connection) continue;
    const short event = attempt.is_connected ? connection.waits_for(POLLOUT) : short{POLLOUT};
    entries.push_back({connection.fd(), event, 0});
  }
}

void PeerLinks::polled(std::span<const pollfd> entries) {
  if (!listener_) return;
  const auto knocks = [this](const pollfd& entry) {
    if (entry.revents == 0) return false;
    return entry.fd == listener_.get() ||
           std::any_of(visitors_.begin(), visitors_.end(),
                       [&](const Visitor& visitor) { return visitor.connection.fd() == entry.fd; });
  };
  knocked_ = knocked_ || std::any_of(entries.begin(), entries.end(), knocks);
}

std::string PeerLinks::status(Rank peer) const {
  const auto found = wanted_.find(peer);
  if (found == wanted_.end() || peer < rank_) {
    return fmt::format("rank {} has not connected", peer);
  }
  const Attempt& attempt = found->second;
  if (attempt.addresses.empty()) {
    return fmt::format("rank {} has not exchanged messages with lower ranks so far", peer);
  }
  return fmt::format("cannot reach rank {}: {}", peer,
                     attempt.last.empty() ? "no answer" : attempt.last);
}

}  // namespace ddp::runtime
