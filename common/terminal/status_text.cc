#include "common/terminal/status_text.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "common/base/count_text.h"
#include "common/base/duration_text.h"

namespace ddp::terminal {
namespace {}  // namespace

void StatusText::begin_round(const RoundSize& round) {
  head_ = fmt::format("round {}", round.round);
  if (round.restarts > 0)
    head_ += fmt::format(" (restart {} of {})", round.restarts, round.max_restarts);
  head_ += fmt::format(" | {} | {}", count_text(round.nodes, "node"),
                       count_text(round.workers, "worker"));
  step_ = -1;
  total_steps_ = 0;
  steps_.clear();
  losses_.clear();
}

void StatusText::on_progress(TimePoint now, int source, std::int64_t step, double loss,
                             std::int64_t total_steps) {
  losses_[source] = loss;
  if (total_steps > 0) total_steps_ = total_steps;
  if (step <= step_) return;
  step_ = step;
  steps_.emplace_back(now, step_);
  // One step that is older than the span stays: the rate is measured from there.
  while (steps_.size() > 2 && steps_[1].first <= now - kRateSpan) steps_.pop_front();
}

// Measured up to now and not up to the last step, so that the rate falls while nothing happens.
double StatusText::rate(TimePoint now) const {
  if (steps_.size() < 2) return 0;
  const auto since = std::chrono::duration<double>(now - steps_.front().first).count();
  return since > 0 ? static_cast<double>(step_ - steps_.front().second) / since : 0;
}

std::string StatusText::text(TimePoint now) const {
  std::string text = head_;
  if (step_ < 0) return text;
  text += fmt::format(" | step {}", step_);
  if (total_steps_ > 0) text += fmt::format("/{}", total_steps_);
  if (const double per_second = rate(now); per_second > 0) {
    text += fmt::format(" | {:.{}f} steps/s", per_second, per_second < 10 ? 2 : 1);
    if (total_steps_ > 0) {
      const auto left = static_cast<double>(total_steps_ - step_);
      text += " | ETA " + duration_text(left / per_second);
    }
  }
  double sum = 0;
  for (const auto& [source, loss] : losses_) sum += loss;
  const double loss = sum / static_cast<double>(losses_.size());
  // Programs without a loss report 0.
  if (loss != 0) text += fmt::format(" | loss {:.4g}", loss);
  return text;
}

}  // namespace ddp::terminal
