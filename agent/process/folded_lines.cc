#include "agent/process/folded_lines.h"

#include <string>
#include <utility>

namespace ddp::agent {

FoldedLines::FoldedLines(asio::io_context& io, std::shared_ptr<Console> console)
    : console_(std::move(console)), timer_(io) {}

void FoldedLines::begin_round(int members, PrefixOf prefix_of) {
  flush();
  prefix_of_ = std::move(prefix_of);
  folder_.begin(members);
}

void FoldedLines::add(int local_rank, std::string_view text) {
  const TimePoint now = Clock::now();
  folder_.add(now, local_rank, text);
  show(folder_.take(now));
  arm();
}

void FoldedLines::flush() {
  show(folder_.take_all());
  arm();
}

void FoldedLines::show(const std::vector<LineFolder::Line>& lines) {
  if (lines.empty()) return;
  std::string text;
  const auto now = std::chrono::system_clock::now();
  for (const LineFolder::Line& line : lines) {
    prefix_of_(line.members).append_to(text, now);
    text.append(line.text).push_back('\n');
  }
  console_->write(text);
}

void FoldedLines::arm() {
  const auto next = folder_.next_deadline();
  if (!next) {
    armed_for_ = {};
    return timer_.cancel();
  }
  // Deadlines only grow, so a timer that fires too early finds nothing and is set again.
  if (armed_for_ != TimePoint{}) return;
  armed_for_ = *next;
  timer_.at(*next, [this] {
    armed_for_ = {};
    show(folder_.take(Clock::now()));
    arm();
  });
}

}  // namespace ddp::agent
