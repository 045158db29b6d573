#include "worker/ddp/trainer/progress_bar.h"

#include <unistd.h>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "worker/data/progress.h"
#include "worker/ddp/trainer/trainer.h"

namespace ddp {

ProgressBar::ProgressBar(std::FILE* out) : out_(out) {}
ProgressBar::~ProgressBar() = default;

void ProgressBar::on_fit_start(Trainer& trainer, TrainerModule& /*module*/) {
  printer_ = std::make_unique<ProgressPrinter>(out_, ::isatty(::fileno(out_)) != 0,
                                               trainer.options().log_every_n_steps);
}

void ProgressBar::on_train_batch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (trainer.group()->rank() != 0) return;
  Progress progress;
  progress.epoch = trainer.place().epoch;
  progress.epochs = trainer.total_epochs();
  progress.step = trainer.place().step;
  progress.total_steps = trainer.total_steps();
  progress.loss = trainer.last_loss();
  progress.samples_per_second = trainer.throughput().recent();
  progress.eta_seconds = trainer.throughput().step_seconds() *
                         static_cast<double>(progress.total_steps - progress.step);
  for (const auto& [name, value] : trainer.progress_metrics()) {
    progress.more += fmt::format("  {} {:.4g}", name, value);
  }
  printer_->step(progress, Clock::now());
}

void ProgressBar::on_validation_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (trainer.group()->rank() != 0) return;
  std::string text = fmt::format("epoch {}  step {}  validation:", trainer.place().epoch + 1,
                                 trainer.place().step);
  for (const auto& [name, value] : trainer.validation_metrics()) {
    text += fmt::format("  {} {:.4g}", name, value);
  }
  printer_->line(text);
}

void ProgressBar::on_fit_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (trainer.group()->rank() != 0) return;
  std::string text = fmt::format("done: {} updates", trainer.place().step);
  if (!trainer.stop_reason().empty()) text += "; stopped: " + trainer.stop_reason();
  printer_->line(text);
}

}  // namespace ddp
