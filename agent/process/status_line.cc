#include "agent/process/status_line.h"

#include <utility>

namespace ddp::agent {

StatusLine::StatusLine(asio::io_context& io, std::shared_ptr<Console> console)
    : console_(std::move(console)), timer_(io) {}

void StatusLine::begin_round(const terminal::RoundSize& round) {
  if (!console_->is_terminal()) return;
  text_.begin_round(round);
  show();
}

void StatusLine::on_progress(int local_rank, const wire::Progress& progress) {
  if (!console_->is_terminal()) return;
  text_.on_progress(Clock::now(), local_rank, progress.step, progress.loss, progress.total_steps);
}

void StatusLine::end() {
  timer_.cancel();
  console_->show_status("");
}

// Repeated, because the rate falls while nothing happens.
void StatusLine::show() {
  console_->show_status(text_.text(Clock::now()));
  timer_.after(kPeriod, [this] { show(); });
}

}  // namespace ddp::agent
