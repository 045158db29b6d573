#include "launcher/server/step_count.h"

#include <algorithm>
#include <limits>

#include "common/base/parse_number.h"

namespace ddp::server {
namespace {

constexpr std::size_t kMindMadeUp = 4;

// The text after `name` and a colon, up to the next comma or brace; empty if it is not there.
std::string field_of(const std::string& line, const char* name) {
  const std::string start = std::string("\"") + name + "\":";
  const std::size_t at = line.find(start);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + start.size();
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

}  // namespace

void StepCount::take(std::string_view events) {
  while (!events.empty()) {
    const std::size_t end = events.find('\n');
    line_ += events.substr(0, end);
    if (end == std::string_view::npos) return;
    events.remove_prefix(end + 1);
    take_line();
    line_.clear();
  }
}

void StepCount::take_line() {
  if (line_.find("\"cat\":\"step\"") != std::string::npos) {
    if (const auto process = parse_whole_number<std::size_t>(field_of(line_, "pid")))
      ++steps_of_[*process];
  } else if (line_.find("\"name\":\"ranks\"") != std::string::npos) {
    ranks_ = parse_whole_number<std::size_t>(field_of(line_, "count")).value_or(ranks_);
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
  const bool are_all = steps_of_.size() >= ranks_ || most >= kMindMadeUp * wanted_;
  return are_all ? fewest : 0;
}

bool StepCount::is_reached() const { return wanted_ > 0 && fewest() >= wanted_; }

}  // namespace ddp::server
