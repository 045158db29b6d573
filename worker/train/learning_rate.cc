#include "worker/train/learning_rate.h"

#include <algorithm>

namespace ddp::train {

double learning_rate(const Options& options, double base, std::int64_t epoch, double done) {
  if (options.lr_schedule == LrSchedule::kConstant) return base;
  const double epochs_before = static_cast<double>(epoch);
  if (options.lr_schedule == LrSchedule::kWarmupExponential &&
      epochs_before < options.lr_warmup_epochs) {
    return base * std::min(1.0, (epochs_before + done) / options.lr_warmup_epochs);
  }
  // Repeated division, because the last bit of std::pow depends on the library.
  double rate = base;
  for (std::int64_t drop = epoch / options.lr_decay_epochs; drop > 0 && rate > 0; --drop) {
    rate /= options.lr_decay_factor;
  }
  return rate;
}

}  // namespace ddp::train
