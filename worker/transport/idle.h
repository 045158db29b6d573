#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "worker/transport/segment_layout.h"

namespace ddp::transport {

// The stages of waiting at a rank's doorbell: spin, yield the CPU, sleep. Each object belongs to
// one thread; any number of threads may have one for the same doorbell.
class Idle {
 public:
  // spin: whether to begin with a busy loop; see spinning_pays().
  Idle(Doorbell& door, bool spin) : door_(door), spin_(spin) {}
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;
  ~Idle() { reset(); }

  // Something moved: begin again.
  void reset();
  // After a look that found nothing. False: look again. True: sleep until the bell is no longer
  // bell(), call slept() and look again.
  bool wait();
  // While this is true, a rank that changes a flag rings the bell.
  bool armed() const { return stage_ == Stage::kArmed; }
  std::uint32_t bell() const { return bell_; }
  // When it began to yield the CPU, after nothing had moved for some microseconds.
  TimePoint since() const { return since_; }
  void slept() { bell_ = door_.bell.load(std::memory_order_seq_cst); }

 private:
  enum class Stage { kSpin, kYield, kArmed };
  void yield();

  Doorbell& door_;
  TimePoint since_{};
  Stage stage_ = Stage::kSpin;
  int spins_ = 0;
  std::uint32_t bell_ = 0;
  bool spin_;
};

}  // namespace ddp::transport
