#include "agent/process/round_flights.h"

#include <algorithm>
#include <chrono>

#include "agent/core/flight_report.h"
#include "common/base/clock.h"
#include "common/base/monotonic_ns.h"

namespace ddp::agent {
namespace {

// Shorter waits for other ranks are usual in training.
constexpr std::chrono::nanoseconds kLongWait{1'000'000'000};

bool is_under_way(const wire::FlightRecord& record) {
  return record.state == wire::FlightState::kIssued || record.state == wire::FlightState::kStarted;
}

}  // namespace

bool waits_for_others(const wire::Flight& flight) {
  return std::any_of(flight.records.begin(), flight.records.end(), is_under_way) ||
         std::any_of(flight.messages.begin(), flight.messages.end(), is_under_way);
}

std::vector<std::string> long_waits(const std::vector<wire::Flight>& flights) {
  const std::int64_t now = monotonic_ns(Clock::now());
  const auto waits_long = [now](const wire::FlightRecord& record) {
    return is_under_way(record) && now - record.issued_ns >= kLongWait.count();
  };
  const bool any = std::any_of(flights.begin(), flights.end(), [&](const wire::Flight& flight) {
    return std::any_of(flight.records.begin(), flight.records.end(), waits_long) ||
           std::any_of(flight.messages.begin(), flight.messages.end(), waits_long);
  });
  return any ? describe_flights(flights, now) : std::vector<std::string>();
}

std::optional<std::vector<std::string>> last_waits(const RoundMemory& memory,
                                                   const std::vector<wire::Flight>& flights) {
  const auto is_undone = [](const wire::FlightRecord& record) {
    return record.state != wire::FlightState::kDone;
  };
  const bool failed = memory.header().abort.load() != 0 ||
                      std::any_of(flights.begin(), flights.end(), [&](const wire::Flight& flight) {
                        return std::any_of(flight.records.begin(), flight.records.end(), is_undone);
                      });
  if (!failed || flights.empty()) return std::nullopt;
  return describe_flights(flights, monotonic_ns(Clock::now()));
}

}  // namespace ddp::agent
