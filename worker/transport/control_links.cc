#include "worker/transport/control_links.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/non_blocking.h"

namespace ddp::transport {
namespace {

constexpr std::uint32_t kHere = 0x45524548;   // "HERE"
constexpr std::uint32_t kBeat = 0x54414542;   // "BEAT"
constexpr std::uint32_t kLeave = 0x4556454C;  // "LEVE"
constexpr std::uint32_t kAbort = 0x54524241;  // "ABRT"
constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kPayloadMax = 1024;
constexpr std::size_t kTextMax = 500;
// A peer may be this many of its own intervals late, however short the limit here.
constexpr int kBeatsMissed = 4;
// At most this much of the time between two calls of listen() counts as waiting for an explanation:
// a watcher that did not run could not have seen it arrive.
constexpr Duration kWatchedMax{20};

void append(std::string& bytes, std::uint32_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::uint32_t number_at(const std::string& bytes, std::size_t offset) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

Failure read_abort(const std::string& payload) {
  const auto code = static_cast<std::int32_t>(number_at(payload, 0));
  return {code == 0 ? Errc::kAborted : static_cast<Errc>(code),
          static_cast<Rank>(number_at(payload, 4)), payload.substr(8), true};
}

}  // namespace

struct ControlLinks::Peer {
  Connection connection;
  Rank rank;
  int node;
  bool beats;
  std::string place;     // " (pid 4711 on node7)", once it has introduced itself.
  std::string unsent;    // Under using_: what the socket did not take.
  std::string received;  // The begin of a frame.
  bool ready = true;     // It may have sent something.
  bool heard = false;    // Something has arrived.
  bool left = false;     // It said good-bye.
  Duration interval{0};  // Until its next beat, as it announced.
  Duration silent{0};    // Watched time since it was last heard from.
  bool ended = false;
  std::string how;          // How the connection ended.
  Duration unexplained{0};  // Watched time since it ended.
};

ControlLinks::ControlLinks(std::vector<ControlPeer> peers) {
  for (ControlPeer& each : peers) {
    make_non_blocking(each.connection.fd());
    auto peer = std::make_unique<Peer>();
    peer->connection = std::move(each.connection);
    peer->rank = each.rank;
    peer->node = each.node;
    peer->beats = each.beats;
    peers_.push_back(std::move(peer));
  }
}

ControlLinks::~ControlLinks() = default;

void ControlLinks::send(std::uint32_t kind, const std::string& payload, bool last) {
  std::string frame;
  append(frame, kind);
  append(frame, static_cast<std::uint32_t>(payload.size()));
  frame += payload;
  const std::lock_guard lock(using_);
  if (finished_) return;
  finished_ = last;
  for (const auto& peer : peers_) {
    if (kind == kBeat && !peer->beats) continue;
    // If the socket takes no more beats, the peer does not run.
    if (!peer->unsent.empty() && !last) continue;
    peer->unsent += frame;
    const ssize_t sent = peer->connection.send(std::as_bytes(std::span(peer->unsent)));
    if (sent > 0) peer->unsent.erase(0, static_cast<std::size_t>(sent));
  }
}

void ControlLinks::tell_abort(const Failure& cause) {
  const bool ours = cause.code.category() == make_error_code(Errc::kAborted).category();
  std::string payload;
  append(payload, static_cast<std::uint32_t>(ours ? cause.code.value() : 0));
  append(payload, static_cast<std::uint32_t>(cause.suspect));
  payload += cause.text.substr(0, kTextMax);
  send(kAbort, payload, true);
}

void ControlLinks::tell_leave() { send(kLeave, "", true); }

void ControlLinks::introduce(const std::string& host) {
  std::string payload;
  append(payload, static_cast<std::uint32_t>(::getpid()));
  send(kHere, payload + host, false);
}

void ControlLinks::beat(Duration interval) {
  std::string payload;
  append(payload, static_cast<std::uint32_t>(interval.count()));
  send(kBeat, payload, false);
}

void ControlLinks::wait(int stop, Duration limit) {
  entries_.assign(1, pollfd{stop, POLLIN, 0});
  for (const auto& peer : peers_) {
    if (!peer->ended && !peer->left) entries_.push_back({peer->connection.fd(), POLLIN, 0});
  }
  const bool polled =
      ::poll(entries_.data(), entries_.size(), static_cast<int>(limit.count())) >= 0;
  auto entry = entries_.begin();
  for (const auto& peer : peers_) {
    if (!peer->ended && !peer->left) peer->ready = !polled || (++entry)->revents != 0;
  }
}

bool ControlLinks::waits_for_explanation() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->ended && !peer->left; });
}

Outcome ControlLinks::listen(Duration passed, Duration limit) {
  Outcome found;
  for (const auto& peer : peers_) {
    if (peer->left) continue;
    peer->silent += passed;
    if (!peer->ended) {
      // A rank of a large job has many peers, and few of them beat.
      auto told = peer->ready ? take(*peer) : Outcome{};
      if (told) return told;
    } else {
      peer->unexplained += std::min(passed, kWatchedMax);
    }
    if (peer->left || found) continue;
    if (peer->unexplained >= kExplanationTime) {
      found = Failure{Errc::kPeerLost, peer->rank,
                      fmt::format("rank {} on node {} is gone: {}{}", peer->rank, peer->node,
                                  peer->how, peer->place)};
    }
    const Duration patience = std::max(limit, kBeatsMissed * peer->interval);
    const bool is_missed = peer->beats && peer->heard && peer->silent >= patience;
    if (!peer->ended && limit.count() > 0 && is_missed) {
      found = Failure{Errc::kTimeout, peer->rank,
                      fmt::format("nothing was heard from rank {} on node {} for {} ms{}: it is "
                                  "stopped, or its machine or the network has failed",
                                  peer->rank, peer->node, peer->silent.count(), peer->place)};
    }
  }
  return found;
}

// Reads what has arrived and acts on its frames. Returns the cause if a frame reports an abort.
Outcome ControlLinks::take(Peer& peer) {
  char buffer[4096];
  for (std::unique_lock lock(using_);;) {
    const ssize_t got = peer.connection.receive(std::as_writable_bytes(std::span(buffer)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) break;
    if (got <= 0) {
      peer.ended = true;
      peer.how = got == 0 ? "it closed the connection" : peer.connection.explain(errno);
      break;
    }
    peer.received.append(buffer, static_cast<std::size_t>(got));
    peer.heard = true;
    peer.silent = Duration{0};
  }
  while (peer.received.size() >= kHeaderBytes) {
    const std::uint32_t kind = number_at(peer.received, 0);
    const std::size_t size = number_at(peer.received, 4);
    const bool known = (kind == kHere && size >= 4 && size <= kPayloadMax) ||
                       (kind == kBeat && size == 4) || (kind == kLeave && size == 0) ||
                       (kind == kAbort && size >= 8 && size <= kPayloadMax);
    if (!known) {
      return Failure{Errc::kProtocol, peer.rank,
                     fmt::format("rank {} on node {} sent bytes that are not a control frame",
                                 peer.rank, peer.node)};
    }
    if (peer.received.size() < kHeaderBytes + size) break;
    const std::string payload = peer.received.substr(kHeaderBytes, size);
    peer.received.erase(0, kHeaderBytes + size);
    if (kind == kAbort) return read_abort(payload);
    if (kind == kLeave) peer.left = true;
    if (kind == kHere) {
      peer.place = fmt::format(" (pid {} on {})", number_at(payload, 0), payload.substr(4));
    }
    if (kind == kBeat) peer.interval = Duration{number_at(payload, 0)};
  }
  return {};
}

}  // namespace ddp::transport
