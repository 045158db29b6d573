#include "worker/runtime/commit_pacer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace ddp::runtime {

CommitPacer::CommitPacer(const CommitPace& pace) : pace_(pace) {
  if (pace.every < 0 || !(pace.share > 0 && pace.share < 1)) {
    throw std::invalid_argument(
        fmt::format("a commit every {} steps, or with a share of {} of the time: expected at least "
                    "0 steps and a share greater than 0 and less than 1",
                    pace.every, pace.share));
  }
  begin();
}

void CommitPacer::begin() {
  interval_ = pace_.every > 0 ? pace_.every : 1;
  steps_ = 0;
  ended_ = -1;
}

bool CommitPacer::step() { return ++steps_ >= interval_; }

void CommitPacer::commit_begins(double now) {
  began_ = now;
  if (ended_ >= 0 && steps_ > 0) {
    remember(step_seconds_, (now - ended_) / static_cast<double>(steps_));
  }
  steps_ = 0;
}

void CommitPacer::commit_ended(double now, bool made_buffers) {
  ended_ = now;
  if (!made_buffers) remember(commit_seconds_, now - began_);
}

std::int64_t CommitPacer::proposal() const {
  if (pace_.every > 0) return pace_.every;
  if (step_seconds_.empty() || commit_seconds_.empty()) return 1;
  // The number of steps for which one commit takes its share of the time.
  const double steps = median(commit_seconds_) * (1 - pace_.share) /
                       (pace_.share * std::max(median(step_seconds_), 1e-9));
  const double most = static_cast<double>(std::min(kLongest, interval_ * kGrowth));
  return static_cast<std::int64_t>(std::ceil(std::clamp(steps, 1.0, most)));
}

void CommitPacer::agree(std::int64_t steps) {
  interval_ = std::clamp<std::int64_t>(steps, 1, kLongest);
}

void CommitPacer::remember(Seconds& all, double value) {
  if (all.size() == kRemembered) all.erase(all.begin());
  all.push_back(value);
}

double CommitPacer::median(Seconds all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

}  // namespace ddp::runtime
