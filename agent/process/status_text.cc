#include "agent/process/status_text.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

void StatusText::begin_round(const wire::RoundStart& round) {
  head_ = fmt::format("round {}", round.round);
  if (round.restarts > 0)
    head_ += fmt::format(" (restart {} of {})", round.restarts, round.max_restarts);
  head_ += fmt::format(" | {} | {}", counted(round.members.size(), "node"),
                       counted(static_cast<std::size_t>(round.world_size), "worker"));
  step_ = -1;
  steps_.clear();
  losses_.clear();
}

void StatusText::on_progress(TimePoint now, int local_rank, const wire::Progress& progress) {
  losses_[local_rank] = progress.loss;
  if (progress.step <= step_) return;
  step_ = progress.step;
  steps_.emplace_back(now, step_);
  // One that is older than the span stays: the rate is taken from there.
  while (steps_.size() > 2 && steps_[1].first <= now - kRateSpan) steps_.pop_front();
}

// A worker that stands still is seen to: the time since its last step counts.
double StatusText::rate(TimePoint now) const {
  if (steps_.size() < 2) return 0;
  const auto since = std::chrono::duration<double>(now - steps_.front().first).count();
  return since > 0 ? static_cast<double>(step_ - steps_.front().second) / since : 0;
}

std::string StatusText::text(TimePoint now) const {
  std::string text = head_;
  if (step_ < 0) return text;
  text += fmt::format(" | step {}", step_);
  if (const double per_second = rate(now); per_second > 0)
    text += fmt::format(" | {:.{}f} steps/s", per_second, per_second < 10 ? 2 : 1);
  double sum = 0;
  for (const auto& [local_rank, loss] : losses_) sum += loss;
  const double loss = sum / static_cast<double>(losses_.size());
  // Programs that report none report 0.
  if (loss != 0) text += fmt::format(" | loss {:.4g}", loss);
  return text;
}

}  // namespace ddp::agent
