#include "worker/data/progress.h"

#include <chrono>

#include <fmt/format.h>

#include "common/base/duration_text.h"

namespace ddp {
std::string format_progress(const Progress& progress) {
  return fmt::format("epoch {}/{}  step {}/{}  loss {:.4f}  {:.0f} samples/s  ETA {}{}",
                     progress.epoch + 1, progress.epochs, progress.step, progress.total_steps,
                     progress.loss, progress.samples_per_second,
                     duration_text(progress.eta_seconds), progress.more);
}

ProgressPrinter::ProgressPrinter(std::FILE* out, bool terminal, std::int64_t log_every)
    : out_(out), terminal_(terminal), log_every_(log_every) {}

void ProgressPrinter::step(const Progress& progress, TimePoint now) {
  const bool last = progress.step == progress.total_steps;
  if (!terminal_) {
    if (progress.step % log_every_ == 0 || last) line(format_progress(progress));
    return;
  }
  if (drawn_ && !last && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  // Back to the first column, and erase what a longer line left behind the text.
  fmt::print(out_, "\r{}\x1b[K", format_progress(progress));
  std::fflush(out_);
}

void ProgressPrinter::line(const std::string& text) {
  clear();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void ProgressPrinter::clear() {
  if (drawn_) fmt::print(out_, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace ddp
