#include "agent/core/trace_text.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/wire/json_messages.h"

namespace ddp::agent {
namespace {

// Perfetto takes process 0 for the idle process.
constexpr int kFirstProcess = 1;
// Threads of all processes have different numbers.
constexpr int kMostLanes = 1'000;

const std::string kOthers = "others";

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

void append_microseconds(std::string& text, std::int64_t ns) {
  const std::int64_t size = ns < 0 ? -ns : ns;
  fmt::format_to(std::back_inserter(text), "{}{}.{:03}", ns < 0 ? "-" : "", size / 1'000,
                 size % 1'000);
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

int TraceText::lane_number(std::string& text, const Place& place, const std::string& lane) {
  auto& lanes = lanes_[place.rank];
  const int process = kFirstProcess + place.rank;
  if (lanes.empty()) {
    append_name(text, "process", process, process * kMostLanes,
                fmt::format("rank {} ({})", place.rank, place.host),
                static_cast<std::size_t>(process));
  }
  // A program may name very many. The last row takes all others.
  const int next = static_cast<int>(lanes.size());
  const std::string& name = next < kMostLanes - 1 || lanes.contains(lane) ? lane : kOthers;
  const auto [found, is_new] =
      lanes.try_emplace(name, process * kMostLanes + std::min(next, kMostLanes - 1));
  if (is_new) append_name(text, "thread", process, found->second, name, order_of(name));
  return found->second;
}

void TraceText::append(std::string& text, const Place& place, const wire::TraceSpan& span,
                       std::int64_t shift_ns) {
  std::int64_t begin = span.begin_ns;
  std::string lane = wire::lane_of(span);
  const bool is_message = lane == wire::kMessagesLane;
  const bool is_operation = lane.empty();
  if (is_operation) {
    lane = fmt::format("group {}", place.group);
    // One that its caller runs begins when it is called, and may wait for the one before.
    std::int64_t& ended = ended_[{place.rank, lane}];
    begin = std::clamp(ended, begin, span.end_ns);
    ended = span.end_ns;
  }
  const int thread = lane_number(text, place, lane);
  std::string name = wire::name_of(span);
  const std::string_view kind = is_operation ? "collective" : kind_of(lane);
  const bool is_step = kind == "step";
  if (is_step) name += fmt::format(" {}", span.index);
  const auto common = [&](std::string_view phase, std::int64_t at) {
    fmt::format_to(std::back_inserter(text),
                   "{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"cat\":", phase,
                   kFirstProcess + place.rank, thread);
    append_text(text, kind);
    text += ",\"name\":";
    append_text(text, name);
    text += ",\"ts\":";
    append_microseconds(text, at + shift_ns);
  };
  const auto details = [&] {
    fmt::format_to(std::back_inserter(text), ",\"args\":{{\"rank\":{},\"round\":{}", place.rank,
                   place.round);
    if (span.index >= 0)
      fmt::format_to(std::back_inserter(text), ",\"{}\":{}",
                     is_step                      ? "step"
                     : is_operation || is_message ? "sequence"
                                                  : "index",
                     span.index);
    if (is_operation || is_message) {
      text += ",\"group\":";
      append_text(text, place.group);
      fmt::format_to(std::back_inserter(text), ",\"bytes\":{},\"queued_us\":", span.bytes);
      append_microseconds(text, begin - span.issued_ns);
      if (span.peer >= 0)
        fmt::format_to(std::back_inserter(text), ",\"{}\":{}", is_message ? "peer" : "root",
                       span.peer);
    }
    text += "}},\n";
  };
  if (!is_message) {
    common("X", begin);
    text += ",\"dur\":";
    append_microseconds(text, span.end_ns - begin);
    return details();
  }
  // Messages overlap, so they are asynchronous events.
  common("b", span.begin_ns);
  fmt::format_to(std::back_inserter(text), ",\"id\":\"{}.{}\"", place.rank, span.number);
  details();
  common("e", span.end_ns);
  fmt::format_to(std::back_inserter(text), ",\"id\":\"{}.{}\"}},\n", place.rank, span.number);
}

}  // namespace ddp::agent
