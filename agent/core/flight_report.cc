#include "agent/core/flight_report.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "agent/core/message_report.h"

namespace ddp::agent {
namespace {

using wire::Flight;
using wire::FlightRecord;
using wire::FlightState;

constexpr std::size_t kSentencesMax = 16;

// How one rank stands in one group.
struct Standing {
  Rank rank = -1;
  bool awaits_message = false;
  std::optional<FlightRecord> pending;  // The first one that is not done.
  std::optional<FlightRecord> last;     // The last one that is done.
};

bool ended_badly(const FlightRecord& record) { return record.state == FlightState::kFailed; }

std::int64_t moment_of_failure(const std::vector<Flight>& flights, std::int64_t now_ns) {
  std::int64_t moment = now_ns;
  for (const Flight& flight : flights) {
    for (const auto* records : {&flight.records, &flight.messages}) {
      for (const FlightRecord& record : *records) {
        if (ended_badly(record)) moment = std::min(moment, record.ended_ns);
      }
    }
  }
  return moment;
}

Standing standing_in(const Flight& flight, std::uint32_t group, std::int64_t moment) {
  Standing standing;
  standing.rank = flight.rank;
  standing.awaits_message = awaits_message(flight, moment);
  for (const FlightRecord& record : flight.records) {
    // An operation that was issued later failed at once and waited for nobody.
    if (record.group != group || record.issued_ns > moment) continue;
    const bool done = record.state == FlightState::kDone;
    auto& slot = done ? standing.last : standing.pending;
    const bool better =
        !slot || (done ? record.sequence > slot->sequence : record.sequence < slot->sequence);
    if (better) slot = record;
  }
  return standing;
}

// By group name. If a rank has several groups of one name, the last one counts.
std::map<std::string, std::vector<Standing>> standings(const std::vector<Flight>& flights,
                                                       std::int64_t moment) {
  std::map<std::string, std::vector<Standing>> all;
  for (const Flight& flight : flights) {
    std::map<std::string, std::uint32_t> ids;
    for (std::uint32_t id = 0; id < flight.groups.size(); ++id) ids[flight.groups[id]] = id;
    for (const FlightRecord& record : flight.records) {
      if (record.group >= flight.groups.size()) ids[flight.group_name(record.group)] = record.group;
    }
    for (const auto& [name, id] : ids) all[name].push_back(standing_in(flight, id, moment));
  }
  return all;
}

// "rank 1", "ranks 0,2-4"
std::string name_ranks(std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string list;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    list += fmt::format("{}{}", list.empty() ? "" : ",", ranks[i]);
    if (end - i > 1) list += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", list);
}

std::string name_operation(const FlightRecord& record) {
  const std::string tag = wire::tag_of(record);
  return fmt::format("{} #{}{}", wire::operation_of(record), record.sequence,
                     tag.empty() ? "" : fmt::format(" ({})", tag));
}

struct Class {
  std::vector<Rank> ranks;
  std::int64_t since = 0;
  std::optional<FlightRecord> record;
};

// Classes of ranks: those that wait, by the operation that they wait in (`waiting`), or those that
// do not, by their last operation.
std::vector<Class> classes_of(const std::vector<Standing>& standings, bool waiting) {
  std::vector<Class> classes;
  for (const Standing& standing : standings) {
    if (standing.pending.has_value() != waiting) continue;
    const auto& record = waiting ? standing.pending : standing.last;
    const auto same = [&](const Class& other) {
      if (!record || !other.record) return !record && !other.record;
      return name_operation(*record) == name_operation(*other.record);
    };
    std::int64_t since = 0;
    if (record) {
      since = record->ended_ns;
      if (waiting) since = record->started_ns != 0 ? record->started_ns : record->issued_ns;
    }
    const auto known = std::find_if(classes.begin(), classes.end(), same);
    if (known == classes.end()) {
      classes.push_back({{standing.rank}, since, record});
    } else {
      known->ranks.push_back(standing.rank);
      known->since = std::min(known->since, since);
    }
  }
  return classes;
}

std::string describe_idle(const Class& idle, const std::vector<Class>& waiting,
                          std::int64_t moment) {
  const bool several = idle.ranks.size() > 1;
  std::string text = name_ranks(idle.ranks);
  if (waiting.size() != 1) {
    text += several ? " wait in no operation" : " waits in no operation";
  } else if (idle.record && idle.record->sequence >= waiting.front().record->sequence) {
    text += several ? " have finished it" : " has finished it";
  } else {
    text += several ? " have not issued it" : " has not issued it";
  }
  if (!idle.record)
    return text + (several ? ": they have finished none" : ": it has finished none");
  return text + fmt::format(": {} last operation was {}, done {} ago", several ? "their" : "its",
                            name_operation(*idle.record), name_time(moment - idle.since));
}

// Empty if there is nothing to say.
std::string describe_group(const std::string& name, std::vector<Standing> standings,
                           std::int64_t moment) {
  const std::vector<Class> waiting = classes_of(standings, true);
  if (waiting.empty() && name != wire::kWorldGroup) return "";
  if (waiting.empty()) {
    std::erase_if(standings, [](const Standing& each) { return each.awaits_message; });
  }
  const std::vector<Class> idle = classes_of(standings, false);
  std::string text = name == wire::kWorldGroup ? "" : fmt::format("in group {}: ", name);
  const char* separator = "";
  for (const Class& each : waiting) {
    text += fmt::format("{}{} {} waited {} in {}", separator, name_ranks(each.ranks),
                        each.ranks.size() > 1 ? "have" : "has", name_time(moment - each.since),
                        name_operation(*each.record));
    separator = "; ";
  }
  for (const Class& each : idle) {
    text += separator + describe_idle(each, waiting, moment);
    separator = "; ";
  }
  return text;
}

}  // namespace

std::vector<std::string> describe_flights(const std::vector<wire::Flight>& flights,
                                          std::int64_t now_ns) {
  const std::int64_t moment = moment_of_failure(flights, now_ns);
  const auto groups = standings(flights, moment);
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (!sentence.empty() && sentences.size() < kSentencesMax) {
      sentences.push_back(std::move(sentence));
    }
  };
  if (const auto world = groups.find(wire::kWorldGroup); world != groups.end()) {
    add(describe_group(wire::kWorldGroup, world->second, moment));
  }
  for (const auto& [name, all] : groups) {
    if (name != wire::kWorldGroup) add(describe_group(name, all, moment));
  }
  for (std::string& sentence : describe_messages(flights, moment)) add(std::move(sentence));
  return sentences;
}

}  // namespace ddp::agent
