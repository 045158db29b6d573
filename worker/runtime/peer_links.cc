#include "worker/runtime/peer_links.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/endpoint.h"
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
  if (wanted_.empty() && visitors_.empty()) return {};
  const TimePoint now = Clock::now();
  const bool due = now >= next_attempt_;
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
      connected.push_back({peer, std::move(attempt.fd)});
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
    attempt.fd = std::move(*fd);
    attempt.limit = Clock::now() + kAddressTime;
  } else {
    attempt.last = fd.error().message;
    attempt.address = (attempt.address + 1) % attempt.addresses.size();
  }
}

// Returns true once the connection exists and the peer knows whose it is.
bool PeerLinks::try_connect(Rank peer, Attempt& attempt, bool due) {
  if (attempt.addresses.empty()) return false;
  if (!attempt.fd && due) begin_connect(attempt);
  if (!attempt.fd) return false;
  const std::string& address = attempt.addresses[attempt.address];
  pollfd entry{attempt.fd.get(), POLLOUT, 0};
  const bool ready = ::poll(&entry, 1, 0) > 0;
  if (!ready && Clock::now() < attempt.limit) return false;
  auto result = ready ? transport::finish_connect(attempt.fd.get(), address, attempt.port)
                      : Result<void>(make_error(Errc::kTimeout, "{} port {}: no answer", address,
                                                attempt.port));
  if (result) {
    Hello hello;
    hello.token = attempt.token;
    hello.round = round_;
    hello.world_size = world_size_;
    hello.connecting = rank_;
    hello.listening = peer;
    transport::set_connection_options(attempt.fd.get());
    // A new socket has room for it.
    const ssize_t sent = ::send(attempt.fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(sizeof(hello))) return true;
    result = make_error(Errc::kPeerLost, "{} port {}: {}", address, attempt.port,
                        std::generic_category().message(errno));
  }
  attempt.last = result.error().message;
  attempt.fd.reset();
  attempt.address = (attempt.address + 1) % attempt.addresses.size();
  return false;
}

void PeerLinks::accept(std::vector<Connected>& connected) {
  if (!listener_) return;
  for (UniqueFd& fd : transport::accept_some(listener_.get(), gate_))
    visitors_.push_back({std::move(fd), {}, 0});
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    const Greeting greeting = read_hello(*visitor);
    if (greeting == Greeting::kIncomplete) {
      ++visitor;
      continue;
    }
    const Rank peer = visitor->hello.connecting;
    // Accept unwanted ranks too: they may have seen the endpoint published for another rank.
    if (greeting == Greeting::kWelcome && accepted_.insert(peer).second) {
      transport::set_connection_options(visitor->fd.get());
      connected.push_back({peer, std::move(visitor->fd)});
      wanted_.erase(peer);
    }
    visitor = visitors_.erase(visitor);
  }
}

PeerLinks::Greeting PeerLinks::read_hello(Visitor& visitor) const {
  auto* bytes = reinterpret_cast<std::byte*>(&visitor.hello);
  if (visitor.received < sizeof(Hello)) {
    const ssize_t got = ::recv(visitor.fd.get(), bytes + visitor.received,
                               sizeof(Hello) - visitor.received, MSG_DONTWAIT);
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
  const bool same = std::memcmp(bytes, &expected, sizeof(Hello)) == 0;
  const bool lower = expected.connecting >= 0 && expected.connecting < rank_;
  return same && lower ? Greeting::kWelcome : Greeting::kRefused;
}

void PeerLinks::add_poll_entries(std::vector<pollfd>& entries) const {
  if (listener_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) entries.push_back({visitor.fd.get(), POLLIN, 0});
  for (const auto& [peer, attempt] : wanted_) {
    if (attempt.fd) entries.push_back({attempt.fd.get(), POLLOUT, 0});
  }
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
