#pragma once

#include <cstdint>

namespace ddp {

// How fast training goes. Only the time of steps counts, not that of evaluations and checkpoints.
class Throughput {
 public:
  void add(std::int64_t samples, double seconds) {
    samples_ += samples;
    seconds_ += seconds;
    constexpr double kWeight = 0.1;  // Of the newest step.
    recent_ = steps_++ == 0 ? seconds : (1 - kWeight) * recent_ + kWeight * seconds;
    last_samples_ = samples;
  }
  // Samples a second, lately and since the start; 0 before the first step.
  double recent() const { return recent_ > 0 ? static_cast<double>(last_samples_) / recent_ : 0; }
  double mean() const { return seconds_ > 0 ? static_cast<double>(samples_) / seconds_ : 0; }
  // Seconds a step, lately.
  double step_seconds() const { return recent_; }

 private:
  std::int64_t samples_ = 0;
  std::int64_t last_samples_ = 0;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double recent_ = 0;
};

}  // namespace ddp
