#include "worker/ddp/tensors/trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "worker/ddp/tensors/text_exchange.h"

namespace ddp {
namespace {

using std::chrono::nanoseconds;

double microseconds(nanoseconds time) { return static_cast<double>(time.count()) / 1000; }

void write_trace(const std::string& file, const std::string& events) {
  std::ofstream out(file, std::ios::trunc);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" << events << "\n]}\n";
  out.close();
  if (!out) {
    throw std::runtime_error(fmt::format("cannot write the trace to {}: {}", file,
                                         std::generic_category().message(errno)));
  }
}

}  // namespace

Trace::Trace(Rank rank, std::size_t limit)
    : rank_(rank),
      limit_(limit),
      to_wall_clock_(std::chrono::duration_cast<nanoseconds>(
          std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch())) {}

void Trace::span(std::string_view lane, std::string name, TimePoint begin, TimePoint end) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= limit_) {
    ++dropped_;
    return;
  }
  spans_.push_back({lane_number(lane), std::move(name), begin, end});
}

std::size_t Trace::lane_number(std::string_view lane) {
  const auto at = std::find(lanes_.begin(), lanes_.end(), lane);
  const auto number = static_cast<std::size_t>(at - lanes_.begin());
  if (at == lanes_.end()) lanes_.emplace_back(lane);
  return number;
}

std::size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return spans_.size();
}

std::size_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::string Trace::events() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto add = [&](const nlohmann::json& event) {
    if (!text.empty()) text += ",\n";
    text += event.dump();
  };
  const auto meta = [&](const char* what, std::size_t lane, const nlohmann::json& args) {
    add({{"ph", "M"}, {"pid", rank_}, {"tid", lane}, {"name", what}, {"args", args}});
  };
  meta("process_name", 0, {{"name", fmt::format("rank {}", rank_)}});
  meta("process_sort_index", 0, {{"sort_index", rank_}});
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    meta("thread_name", lane, {{"name", lanes_[lane]}});
    meta("thread_sort_index", lane, {{"sort_index", lane}});
  }
  for (const Span& span : spans_) {
    add({{"ph", "X"},
         {"pid", rank_},
         {"tid", span.lane},
         {"name", span.name},
         {"cat", lanes_[span.lane]},
         {"ts", microseconds(span.begin.time_since_epoch() + to_wall_clock_)},
         {"dur", microseconds(span.end - span.begin)}});
  }
  return text;
}

void Trace::write(const std::string& file) const { write_trace(file, events()); }

void Trace::write(const std::string& file, ProcessGroup& group) const {
  std::string all;
  for (const std::string& of_rank : gather_texts(group, events(), "trace")) {
    if (!all.empty()) all += ",\n";
    all += of_rank;
  }
  Result<void> written;
  if (group.rank() == 0) {
    try {
      write_trace(file, all);
    } catch (const std::runtime_error& error) {
      written = make_error(Errc::kIo, "{}", error.what());
    }
  }
  written = agree(group, written, "trace");
  if (!written) throw std::runtime_error(written.error().message);
}

}  // namespace ddp
