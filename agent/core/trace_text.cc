#include "agent/core/trace_text.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp::agent {
namespace {

// Perfetto takes process 0 for the idle process.
constexpr int kFirstProcess = 1;
// Threads of all processes have different numbers.
constexpr int kMostLanes = 1'000;

constexpr std::string_view kOthers = "others";
constexpr std::string_view kCollective = "collective";

// Rows from the top; the others follow.
constexpr std::array<std::string_view, 6> kOrder{"step",    "input", "compute",
                                                 "reducer", "wait",  "checkpoint"};

// "bucket" of "bucket 3 of 4".
std::string_view kind_of(std::string_view lane) { return lane.substr(0, lane.find(' ')); }

std::size_t order_of(std::string_view lane) {
  std::size_t place = 0;
  while (place < kOrder.size() && kOrder[place] != lane) ++place;
  return place;
}

// fmt::format_to would take most of the time of a trace, in which there are only few texts.
template <typename Number>
void append_number(std::string& text, Number number) {
  const fmt::format_int digits(number);
  text.append(digits.data(), digits.size());
}

void append_microseconds(std::string& text, std::int64_t ns) {
  if (ns < 0) text += '-';
  const std::int64_t size = ns < 0 ? -ns : ns;
  append_number(text, size / 1'000);
  const auto rest = static_cast<int>(size % 1'000);
  text += '.';
  for (const int digit : {rest / 100, rest / 10 % 10, rest % 10})
    text += static_cast<char>('0' + digit);
}

// Texts of workers may have any bytes; nearly all have none that JSON writes otherwise.
void append_text(std::string& text, std::string_view value) {
  const bool is_plain = std::all_of(value.begin(), value.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (!is_plain) {
    text += dump_json(nlohmann::json(value));
    return;
  }
  text += '"';
  text += value;
  text += '"';
}

std::string in_quotes(std::string_view value) {
  std::string text;
  append_text(text, value);
  return text;
}

void append_name(std::string& text, const char* what, int process, int thread,
                 std::string_view name, std::size_t order) {
  fmt::format_to(
      std::back_inserter(text),
      "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}_name\",\"args\":{{\"name\":{}}}}},\n"
      "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}_sort_index\",\"args\":{{\"sort_"
      "index\":{}}}}},\n",
      process, thread, what, in_quotes(name), process, thread, what, order);
}

}  // namespace

TraceText::Lane TraceText::make_lane(std::string& text, const Place& place, RankLanes& lanes,
                                     std::string_view name, std::string_view kind) {
  const int process = kFirstProcess + place.rank;
  const auto number = static_cast<int>(lanes.size());
  const int thread = process * kMostLanes + std::min(number, kMostLanes - 1);
  if (number == 0) {
    append_name(text, "process", process, process * kMostLanes,
                fmt::format("rank {} ({})", place.rank, place.host),
                static_cast<std::size_t>(process));
  }
  append_name(text, "thread", process, thread, name, order_of(name));
  return {
      fmt::format("\"pid\":{},\"tid\":{},\"cat\":{},\"name\":", process, thread, in_quotes(kind))};
}

TraceText::Lane& TraceText::lane_called(std::string& text, const Place& place,
                                        std::string_view name) {
  RankLanes& lanes = ranks_[place.rank];
  auto found = lanes.others.find(name);
  // A program may name very many. The last row takes all others.
  if (found == lanes.others.end() && lanes.size() >= kMostLanes - 1) {
    name = kOthers;
    found = lanes.others.find(name);
  }
  if (found == lanes.others.end()) {
    found = lanes.others.emplace(name, make_lane(text, place, lanes, name, kind_of(name))).first;
  }
  return found->second;
}

TraceText::Lane& TraceText::lane_of_group(std::string& text, const Place& place) {
  RankLanes& lanes = ranks_[place.rank];
  if (const auto found = lanes.groups.find(place.group); found != lanes.groups.end())
    return found->second;
  if (lanes.size() >= kMostLanes - 1) return lane_called(text, place, kOthers);
  const std::string name = fmt::format("group {}", place.group);
  return lanes.groups.emplace(place.group, make_lane(text, place, lanes, name, kCollective))
      .first->second;
}

void TraceText::append(std::string& text, const Place& place, const wire::TraceSpan& span,
                       std::int64_t shift_ns) {
  const std::string_view lane = wire::lane_of(span);
  const bool is_message = lane == wire::kMessagesLane;
  const bool is_operation = lane.empty();
  const bool is_step = kind_of(lane) == "step";
  Lane& row = is_operation ? lane_of_group(text, place) : lane_called(text, place, lane);
  std::int64_t begin = span.begin_ns;
  if (is_operation) {
    // One that its caller runs begins when it is called, and may wait for the one before.
    begin = std::clamp(row.ended_ns, begin, span.end_ns);
    row.ended_ns = span.end_ns;
  }
  const auto common = [&](char phase, std::int64_t at) {
    text += "{\"ph\":\"";
    text += phase;
    text += "\",";
    text += row.fields;
    append_text(text, wire::name_of(span));
    if (is_step) {
      text.back() = ' ';
      append_number(text, span.index);
      text += '"';
    }
    text += ",\"ts\":";
    append_microseconds(text, at + shift_ns);
  };
  const auto field = [&](std::string_view name, auto number) {
    text += ",\"";
    text += name;
    text += "\":";
    append_number(text, number);
  };
  const auto id = [&] {
    text += ",\"id\":\"";
    append_number(text, place.rank);
    text += '.';
    append_number(text, span.number);
    text += '"';
  };
  const auto details = [&] {
    text += ",\"args\":{\"rank\":";
    append_number(text, place.rank);
    field("round", place.round);
    if (span.index >= 0) {
      field(is_step ? "step" : is_operation || is_message ? "sequence" : "index", span.index);
    }
    if (is_operation || is_message) {
      text += ",\"group\":";
      append_text(text, place.group);
      field("bytes", span.bytes);
      text += ",\"queued_us\":";
      append_microseconds(text, begin - span.issued_ns);
      if (span.peer >= 0) field(is_message ? "peer" : "root", span.peer);
    }
    text += "}},\n";
  };
  if (!is_message) {
    common('X', begin);
    text += ",\"dur\":";
    append_microseconds(text, span.end_ns - begin);
    return details();
  }
  // Messages overlap, so they are asynchronous events.
  common('b', span.begin_ns);
  id();
  details();
  common('e', span.end_ns);
  id();
  text += "},\n";
}

}  // namespace ddp::agent
