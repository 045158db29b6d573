#include "worker/transport/idle.h"

#include <sched.h>

namespace ddp::transport {
namespace {

constexpr int kSpinRounds =
    60;  // About 3 us with the looks in between; a yield costs 6 us if others run.
constexpr std::chrono::microseconds kYieldTime{100};

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Idle::reset() {
  if (stage_ == Stage::kArmed) door_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  stage_ = Stage::kSpin;
  spins_ = 0;
}

bool Idle::wait() {
  if (stage_ == Stage::kArmed) return true;
  if (stage_ == Stage::kYield) {
    yield();
  } else if (spin_ && spins_ < kSpinRounds) {
    pause_cpu();
    ++spins_;
  } else {
    stage_ = Stage::kYield;
    since_ = Clock::now();
  }
  return false;
}

void Idle::yield() {
  ::sched_yield();
  if (Clock::now() - since_ <= kYieldTime) return;
  door_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  bell_ = door_.bell.load(std::memory_order_seq_cst);
  stage_ = Stage::kArmed;
}

}  // namespace ddp::transport
