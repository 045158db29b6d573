#include "agent/core/message_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

using wire::Flight;
using wire::FlightRecord;
using wire::FlightState;

bool waits(const FlightRecord& record, std::int64_t moment) {
  // An operation that was issued later failed at once and waited for nobody.
  return record.issued_ns <= moment && record.state != FlightState::kDone;
}

bool is_send(const FlightRecord& record) { return wire::operation_of(record) == "send"; }

std::string name_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  // "4 KiB", "3.9 KiB"
  return fmt::format("{:.{}f} {}", size,
                     size == static_cast<double>(static_cast<int>(size)) ? 0 : 1, unit);
}

std::string name_content(const FlightRecord& record) {
  return fmt::format("tag {}, {}", record.message_tag, name_bytes(bytes_of(record)));
}

// Messages of a rank to or from one peer, in one direction and group, as of a moment.
struct Exchange {
  const FlightRecord* first = nullptr;  // The first one that is waited for.
  int waiting = 0;                      // How many are waited for.
  const FlightRecord* last = nullptr;   // The last one that is done.

  void add(const FlightRecord& record, std::int64_t moment) {
    if (waits(record, moment)) {
      ++waiting;
      if (first == nullptr || record.sequence < first->sequence) first = &record;
    } else if (record.state == FlightState::kDone) {
      if (last == nullptr || record.sequence > last->sequence) last = &record;
    }
  }
};

using Key = std::tuple<std::uint32_t, Rank, bool>;  // Group, peer, whether it sends.

std::map<Key, Exchange> exchanges_of(const Flight& flight, std::int64_t moment) {
  std::map<Key, Exchange> exchanges;
  for (const FlightRecord& record : flight.messages) {
    exchanges[{record.group, record.root, is_send(record)}].add(record, moment);
  }
  return exchanges;
}

// What the peer did in the opposite direction: messages of any of its groups of that name.
Exchange opposite_of(const Flight& peer, const std::string& group, Rank rank, bool sends,
                     std::int64_t moment) {
  Exchange exchange;
  for (const FlightRecord& record : peer.messages) {
    if (record.root == rank && is_send(record) == sends && peer.group_name(record.group) == group) {
      exchange.add(record, moment);
    }
  }
  return exchange;
}

bool forgot_some(const Flight& flight) {
  return !flight.messages.empty() && flight.messages.front().number > 1;
}

std::string describe_peer(const Flight& peer, const Exchange& done, bool sends,
                          std::int64_t moment) {
  const std::string name = fmt::format("rank {}", peer.rank);
  if (done.first != nullptr) {
    const bool moves = done.first->started_ns != 0 && done.first->started_ns <= moment;
    return fmt::format("{} waits in {} it, {}{}", name, sends ? "send to" : "recv from",
                       name_content(*done.first), moves ? ", of which some has moved" : "");
  }
  const std::string forgotten =
      forgot_some(peer) ? fmt::format(" in its last {} messages", wire::kFlightMessages) : "";
  if (done.last == nullptr) {
    return name + (sends ? " has sent it nothing" : " has received nothing from it") + forgotten;
  }
  return fmt::format("{} last {} {}{} {} ago", name, sends ? "sent it" : "received",
                     name_content(*done.last), sends ? "" : " from it",
                     name_time(moment - done.last->ended_ns));
}

}  // namespace

std::string name_time(std::int64_t ns) {
  const std::int64_t ms = std::max<std::int64_t>(ns, 0) / 1'000'000;
  return ms < 1'000 ? fmt::format("{} ms", ms)
                    : fmt::format("{:.1f} s", static_cast<double>(ms) / 1e3);
}

bool awaits_message(const Flight& flight, std::int64_t moment) {
  return std::any_of(flight.messages.begin(), flight.messages.end(),
                     [&](const FlightRecord& record) { return waits(record, moment); });
}

std::vector<std::string> describe_messages(const std::vector<Flight>& flights,
                                           std::int64_t moment) {
  std::vector<std::string> sentences;
  for (const Flight& flight : flights) {
    for (const auto& [key, exchange] : exchanges_of(flight, moment)) {
      const std::uint32_t group_number = std::get<0>(key);
      const Rank other = std::get<1>(key);
      const bool sends = std::get<2>(key);
      if (exchange.first == nullptr) continue;
      const FlightRecord& record = *exchange.first;
      const std::string group = flight.group_name(group_number);
      const std::string text = wire::tag_of(record);
      std::string sentence = group == wire::kWorldGroup ? "" : fmt::format("in group {}: ", group);
      sentence += fmt::format(
          "rank {} has waited {} in {} rank {}, {}{}{}", flight.rank,
          name_time(moment - record.issued_ns), sends ? "send to" : "recv from", other,
          name_content(record), text.empty() ? "" : fmt::format(" ({})", text),
          exchange.waiting > 1 ? fmt::format(" (and {} more)", exchange.waiting - 1) : "");
      const auto peer = std::find_if(flights.begin(), flights.end(),
                                     [&](const Flight& each) { return each.rank == other; });
      // Each rank numbers its own groups, so only names tell which groups are the same.
      if (peer != flights.end() && group_number < flight.groups.size()) {
        const Exchange opposite = opposite_of(*peer, group, flight.rank, !sends, moment);
        sentence += "; " + describe_peer(*peer, opposite, !sends, moment);
      }
      sentences.push_back(std::move(sentence));
    }
  }
  return sentences;
}

}  // namespace ddp::agent
