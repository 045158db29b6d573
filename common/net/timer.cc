#include "common/net/timer.h"

#include <cstdint>
#include <utility>

#include <asio/steady_timer.hpp>

namespace ddp::net {

struct Timer::State {
  explicit State(asio::io_context& io) : timer(io) {}
  asio::steady_timer timer;
  std::function<void()> callback;
  // Of the pending callback. Handlers of other generations do nothing.
  std::uint64_t generation = 0;
};

Timer::Timer(asio::io_context& io) : state_(std::make_shared<State>(io)) {}

Timer::~Timer() { cancel(); }

void Timer::at(TimePoint when, std::function<void()> callback) {
  state_->callback = std::move(callback);
  const std::uint64_t generation = ++state_->generation;
  state_->timer.expires_at(when);
  state_->timer.async_wait([state = state_, generation](const std::error_code&) {
    if (state->generation != generation) return;
    ++state->generation;
    // Moved out first: the callback may set the timer again.
    auto run = std::exchange(state->callback, nullptr);
    if (run) run();
  });
}

void Timer::after(Duration delay, std::function<void()> callback) {
  at(Clock::now() + delay, std::move(callback));
}

void Timer::cancel() {
  ++state_->generation;
  state_->callback = nullptr;
  state_->timer.cancel();
}

}  // namespace ddp::net
