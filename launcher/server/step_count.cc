#include "launcher/server/step_count.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "common/base/parse_number.h"

namespace ddp::server {
namespace {

constexpr std::size_t kMindMadeUp = 4;
// Events come rank by rank, and an agent is asked at least once in a second, or two if it is slow.
constexpr std::uint64_t kMindMadeUpUs = 3'000'000;

// The text after `name` and a colon, up to the next comma or brace; empty if it is not there.
std::string_view field_of(std::string_view line, const char* name) {
  const std::string start = std::string("\"") + name + "\":";
  const std::size_t at = line.find(start);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + start.size();
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

}  // namespace

void StepCount::take(std::string_view events) {
  lines_.feed(events, [this](std::string_view line) { take_line(line); });
}

void StepCount::take_line(std::string_view line) {
  if (line.find("\"cat\":\"step\"") != std::string::npos) {
    if (const auto process = parse_whole_number<std::size_t>(field_of(line, "pid")))
      ++steps_of_[*process];
    const std::string_view began = field_of(line, "ts");
    if (const auto us = parse_whole_number<std::uint64_t>(began.substr(0, began.find('.')))) {
      first_us_ = std::min(first_us_, *us);
      last_us_ = std::max(last_us_, *us);
    }
  } else if (line.find("\"name\":\"ranks\"") != std::string::npos) {
    ranks_ = parse_whole_number<std::size_t>(field_of(line, "count")).value_or(ranks_);
    // Rank 0 is process 1.
    steps_of_.erase(steps_of_.upper_bound(ranks_), steps_of_.end());
  }
}

std::size_t StepCount::fewest() const {
  if (steps_of_.empty()) return 0;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  std::size_t most = 0;
  for (const auto& [process, steps] : steps_of_) {
    fewest = std::min(fewest, steps);
    most = std::max(most, steps);
  }
  const bool is_long = last_us_ > first_us_ && last_us_ - first_us_ >= kMindMadeUpUs;
  const bool are_all = steps_of_.size() >= ranks_ || (is_long && most >= kMindMadeUp * wanted_);
  return are_all ? fewest : 0;
}

bool StepCount::is_reached() const { return wanted_ > 0 && fewest() >= wanted_; }

}  // namespace ddp::server
