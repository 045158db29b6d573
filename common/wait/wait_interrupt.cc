#include "common/wait/wait_interrupt.h"

#include <algorithm>
#include <utility>

namespace ddp {
namespace {

thread_local WaitInterrupt* current = nullptr;

}  // namespace

WaitInterrupt::WaitInterrupt(std::function<bool()> given_up, Covers covers)
    : given_up_(std::move(given_up)), covers_(covers), outer_(std::exchange(current, this)) {}

WaitInterrupt::~WaitInterrupt() { current = outer_; }

template <typename Condition>
bool WaitInterrupt::any(Condition holds) {
  for (const WaitInterrupt* each = current; each != nullptr; each = each->outer_) {
    if (holds(*each)) return true;
  }
  return false;
}

bool WaitInterrupt::set() { return current != nullptr; }

bool WaitInterrupt::raised() {
  return any([](const WaitInterrupt& each) { return each.given_up_(); });
}

bool WaitInterrupt::set_for_operations() {
  return any([](const WaitInterrupt& each) { return each.covers_ == Covers::kOperationsToo; });
}

bool WaitInterrupt::raised_in_operation() {
  return any([](const WaitInterrupt& each) {
    return each.covers_ == Covers::kOperationsToo && each.given_up_();
  });
}

Duration WaitInterrupt::until_look(TimePoint since) {
  const auto waited = std::chrono::duration_cast<Duration>(Clock::now() - since);
  return std::clamp(waited / 4, kLook, kLongestLook);
}

TimePoint WaitInterrupt::next_look(TimePoint since, TimePoint deadline) {
  return set() ? std::min(deadline, Clock::now() + until_look(since)) : deadline;
}

}  // namespace ddp
