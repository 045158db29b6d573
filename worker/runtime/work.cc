#include "worker/runtime/work.h"

#include <utility>

#include <fmt/format.h>

#include "common/wait/wait_interrupt.h"
#include "worker/runtime/group.h"
#include "worker/runtime/waiting_time.h"
#include "worker/transport/futex.h"

namespace ddp::runtime {
namespace {

// The executing thread detects an expired operation itself. A waiter steps in only if its operation
// is still queued behind one with a later deadline.
constexpr Duration kTurnGrace = collectives::kStallGrace + Duration(500);
constexpr std::chrono::seconds kSleepLimit{1};

class DoneWork final : public Work {
 public:
  bool done() const override { return true; }
  void wait() override {}
};

}  // namespace

const WorkPtr& done_work() {
  static const WorkPtr work = std::make_shared<DoneWork>();
  return work;
}

std::string name_operation(const collectives::OpRecord& record, const SharedText& tag) {
  if (tag.empty()) return fmt::format("{} #{}", name_of(record.kind), record.sequence);
  return fmt::format("{} #{} ({})", name_of(record.kind), record.sequence, tag.str());
}

void CollectiveWork::succeed() { finish(kSucceeded); }

void CollectiveWork::fail(Failure failure) {
  failure_ = std::move(failure);
  finish(kFailed);
}

void CollectiveWork::finish(State state) {
  state_.store(state, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) transport::futex_wake_all(state_);
}

void CollectiveWork::tell_listener() {
  const auto on_done = std::exchange(on_done_, nullptr);
  const bool failed = state_.load(std::memory_order_acquire) == kFailed;
  on_done(failed ? std::make_exception_ptr(CollectiveError(failure_)) : nullptr);
}

bool CollectiveWork::wait_until(TimePoint limit) {
  const std::chrono::nanoseconds nap =
      WaitInterrupt::set_for_operations() ? WaitInterrupt::kLook : kSleepLimit;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  while (state_.load(std::memory_order_seq_cst) == kPending) {
    const auto left = limit - Clock::now();
    if (left.count() <= 0) break;
    transport::futex_wait(state_, kPending, std::min<std::chrono::nanoseconds>(left, nap));
    if (!done() && WaitInterrupt::raised_in_operation()) {
      if (auto group = group_.lock()) group->interrupt();
    }
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return done();
}

void CollectiveWork::start() {
  if (done()) return;
  if (auto group = group_.lock()) group->wake();
}

void CollectiveWork::wait_for_end() {
  const Waiting waiting;
  if (auto group = group_.lock()) group->help(*this);
  if (!done() && !wait_until(operation_.deadline + kTurnGrace)) {
    if (auto group = group_.lock()) group->expire(*this);
    while (!wait_until(Clock::now() + kSleepLimit)) {
    }
  }
}

void CollectiveWork::wait() {
  if (has_future_) future_is_waited_for(operation_.issued());
  if (!done()) wait_for_end();
  if (state_.load(std::memory_order_acquire) == kFailed) {
    throw CollectiveError(failure_);
  }
}

}  // namespace ddp::runtime
