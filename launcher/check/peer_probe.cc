#include "launcher/check/peer_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/base/host_port.h"
#include "common/base/json_text.h"
#include "common/store/socket.h"
#include "launcher/check/name_service.h"
#include "launcher/check/peer_server.h"

namespace ddp::check {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PeerPlace, node, host, address, port, token)

namespace {

constexpr Duration kConnectLimit{3'000};
constexpr Duration kAnswerLimit{5'000};
constexpr std::size_t kAtATime = 16;
constexpr int kClockPings = 5;
constexpr int kLatencyPings = 50;
// Bytes are sent for this long, and no more than so many.
constexpr Duration kSending{400};
constexpr std::int64_t kMostBytes = 4LL << 30;
constexpr std::size_t kSendBytes = 256u << 10;
// What is under way on a slow link may take this long to arrive.
constexpr Duration kDrainLimit{15'000};

double ms_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

Result<store::Socket> connect(const PeerPlace& place, char wanted) {
  const TimePoint deadline = Clock::now() + kConnectLimit;
  auto socket = store::Socket::connect(place.address, place.port, deadline);
  if (!socket) return socket;
  if (auto sent = socket->write_all(place.token + wanted, deadline); !sent) return sent.error();
  return socket;
}

// The shortest of several round trips. It also gives the best time of the peer's clock.
Result<void> ping(store::Socket& socket, int count, PeerFacts& facts) {
  double shortest = 0;
  for (int i = 0; i < count; ++i) {
    const TimePoint deadline = Clock::now() + kAnswerLimit;
    const std::int64_t own = wall_clock_us();
    const TimePoint begin = Clock::now();
    if (auto sent = socket.write_all(to_bytes(own), deadline); !sent) return sent;
    const auto answer = socket.read_exactly(8, deadline);
    if (!answer) return answer.error();
    const double trip = ms_between(begin, Clock::now());
    if (i > 0 && trip >= shortest) continue;
    shortest = trip;
    facts.has_clock = true;
    facts.clock_ms = static_cast<double>(from_bytes(*answer) - own) / 1'000 - trip / 2;
    facts.clock_error_ms = trip / 2;
  }
  facts.latency_ms = facts.latency_ms > 0 ? std::min(facts.latency_ms, shortest) : shortest;
  return {};
}

PeerFacts meet(const PeerPlace& place) {
  PeerFacts facts;
  facts.node = place.node;
  facts.address = host_and_port(place.address, place.port);
  const TimePoint begin = Clock::now();
  Lookup name = look_up(place.host);
  facts.name_error = std::move(name.error);
  facts.name_addresses = std::move(name.addresses);
  facts.reverse_name = name_of_address(place.address);
  facts.name_ms = ms_between(begin, Clock::now());
  auto socket = connect(place, kPing);
  if (!socket) {
    facts.error = facts.address + ": " + socket.error().message;
  } else if (const auto met = ping(*socket, kClockPings, facts); !met) {
    facts.error = facts.address + ": " + met.error().message;
  }
  return facts;
}

// Megabytes a second, from the first byte to the news that the last one has arrived.
Result<double> send_much(const PeerPlace& place) {
  auto socket = connect(place, kSink);
  if (!socket) return socket.error();
  const std::string chunk(kSendBytes, 'x');
  const TimePoint begin = Clock::now();
  const TimePoint deadline = begin + kSending + kDrainLimit;
  std::int64_t bytes = 0;
  while (Clock::now() - begin < kSending && bytes < kMostBytes) {
    if (auto sent = socket->write_all(chunk, deadline); !sent) return sent.error();
    bytes += static_cast<std::int64_t>(chunk.size());
  }
  if (auto ended = socket->end_writing(); !ended) return ended.error();
  const auto answer = socket->read_exactly(8, deadline);
  if (!answer) return answer.error();
  return static_cast<double>(from_bytes(*answer)) / 1e3 / ms_between(begin, Clock::now());
}

}  // namespace

std::string encode(const PeerPlace& place) { return dump_json(nlohmann::json(place)); }

Result<PeerPlace> decode_peer_place(std::string_view text) {
  try {
    return parse_json(text).get<PeerPlace>();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "this is not the place of a node: {}", error.what());
  }
}

std::vector<PeerFacts> meet_peers(const std::vector<PeerPlace>& places) {
  std::vector<PeerFacts> met(places.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < places.size(); i = next++) met[i] = meet(places[i]);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kAtATime, places.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return met;
}

void measure_link(const PeerPlace& place, PeerFacts& facts) {
  facts.is_neighbour = true;
  auto socket = connect(place, kPing);
  if (!socket || !ping(*socket, kLatencyPings, facts)) return;
  if (const auto speed = send_much(place)) facts.mb_per_s = *speed;
}

}  // namespace ddp::check
