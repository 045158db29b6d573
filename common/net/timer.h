#pragma once

#include <functional>
#include <memory>

#include <asio/io_context.hpp>

#include "common/base/clock.h"

namespace ddp::net {

// One pending callback at a time, on the thread of `io`. A callback never runs after it was
// cancelled or replaced or its Timer was destroyed, even if its time had already come.
// asio::steady_timer alone does not promise that.
class Timer {
 public:
  explicit Timer(asio::io_context& io);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Replaces what was pending. The callback may set the timer again or destroy it.
  void at(TimePoint when, std::function<void()> callback);
  void after(Duration delay, std::function<void()> callback);
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddp::net
