#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/clock.h"

namespace ddp::sim {

// Simulated time. Events of the same moment run in the order in which they were scheduled, so one
// seed gives one history.
class EventQueue {
 public:
  TimePoint now() const { return now_; }
  std::int64_t now_ms() const {
    return std::chrono::duration_cast<Duration>(now_.time_since_epoch()).count();
  }
  void at(TimePoint when, std::function<void()> event) {
    events_.emplace(std::make_pair(when < now_ ? now_ : when, next_++), std::move(event));
  }
  void after(Duration delay, std::function<void()> event) { at(now_ + delay, std::move(event)); }

  // Runs the next event; false where none is left before `end`.
  bool run_one(TimePoint end) {
    if (events_.empty() || events_.begin()->first.first > end) return false;
    auto event = events_.extract(events_.begin());
    now_ = event.key().first;
    event.mapped()();
    return true;
  }

 private:
  TimePoint now_{};
  std::uint64_t next_ = 0;
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
};

}  // namespace ddp::sim
