#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "worker/ddp/trainer/callback.h"

namespace ddp {

class ProgressPrinter;

// Prints the progress of the training on rank 0's standard output: on a terminal in one line that
// is redrawn, else in a line every log_every_n_steps updates. Prints the metrics after each
// validation.
class ProgressBar final : public Callback {
 public:
  explicit ProgressBar(std::FILE* out = stdout);
  ~ProgressBar() override;
  std::string name() const override { return "ProgressBar"; }
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;
  void on_fit_end(Trainer& trainer, TrainerModule& module) override;

 private:
  std::FILE* out_;
  std::unique_ptr<ProgressPrinter> printer_;
};

}  // namespace ddp
