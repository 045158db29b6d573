#include "common/wire/flight_ring.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string.h>

#include "common/base/errc.h"
#include "common/base/json_text.h"

namespace ddp::wire {
namespace {

const char* name_of(FlightState state) {
  switch (state) {
    case FlightState::kIssued:
      return "issued";
    case FlightState::kStarted:
      return "started";
    case FlightState::kDone:
      return "done";
    case FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

template <std::size_t Size>
std::vector<FlightRecord> read_entries(const FlightEntry (&entries)[Size]) {
  std::vector<FlightRecord> records;
  for (const FlightEntry& entry : entries) {
    if (const auto record = entry.read()) records.push_back(*record);
  }
  std::sort(records.begin(), records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.number < b.number; });
  return records;
}

nlohmann::ordered_json json_of(const Flight& flight, const FlightRecord& record, bool message) {
  nlohmann::ordered_json json{{"rank", flight.rank},
                              {"group", flight.group_name(record.group)},
                              {"number", record.number},
                              {"sequence", record.sequence},
                              {"operation", operation_of(record)},
                              {"type", text_of(record.type)},
                              {"count", record.count},
                              {"bytes", bytes_of(record)}};
  if (message) {
    json["peer"] = record.root;
    json["message_tag"] = record.message_tag;
  } else {
    json["root"] = record.root;
  }
  json["tag"] = tag_of(record);
  json["state"] = name_of(record.state);
  json["issued_ns"] = record.issued_ns;
  json["started_ns"] = record.started_ns;
  json["ended_ns"] = record.ended_ns;
  return json;
}

}  // namespace

std::string operation_of(const FlightRecord& record) {
  return std::string(text_of(record.operation));
}
std::string tag_of(const FlightRecord& record) { return std::string(text_of(record.tag)); }

std::string Flight::group_name(std::uint32_t group) const {
  return group < groups.size() ? groups[group] : fmt::format("group {}", group);
}

Result<Flight> read_flight(const std::byte* bytes) {
  const auto& ring = *reinterpret_cast<const FlightRing*>(bytes);
  const std::uint32_t magic = ring.magic.load(std::memory_order_acquire);
  if (magic == 0) return make_error(Errc::kNotFound, "the rank has made no group");
  if (magic != kFlightMagic || ring.version != kFlightVersion) {
    return make_error(Errc::kProtocol, "flight recorder: magic {:#x} version {}, expected {:#x} {}",
                      magic, ring.version, kFlightMagic, kFlightVersion);
  }
  Flight flight;
  flight.rank = ring.rank;
  flight.pid = ring.pid;
  const std::size_t groups = std::min<std::size_t>(ring.groups.load(), kFlightGroups);
  for (std::size_t i = 0; i < groups; ++i) {
    const bool named = ring.names[i].named.load(std::memory_order_acquire) != 0;
    flight.groups.push_back(named ? std::string(text_of(ring.names[i].name))
                                  : fmt::format("group {}", i));
  }
  flight.records = read_entries(ring.entries);
  flight.messages = read_entries(ring.message_entries);
  return flight;
}

std::string flight_json_lines(const Flight& flight) {
  struct Line {
    const FlightRecord* record;
    bool message;
  };
  std::vector<Line> order;
  for (const FlightRecord& record : flight.records) order.push_back({&record, false});
  for (const FlightRecord& record : flight.messages) order.push_back({&record, true});
  std::stable_sort(order.begin(), order.end(), [](const Line& a, const Line& b) {
    return a.record->issued_ns < b.record->issued_ns;
  });
  std::string lines;
  for (const auto& [record, message] : order) {
    // The texts come from a worker and may be cut inside a character.
    lines += dump_ordered_json(json_of(flight, *record, message)) + "\n";
  }
  return lines;
}

}  // namespace ddp::wire
