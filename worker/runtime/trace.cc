#include "worker/runtime/trace.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "worker/runtime/trace_scope.h"

namespace ddp {
namespace runtime {
namespace {

// Of this process, which is one rank.
struct Tracing {
  std::atomic<bool> on{false};
  std::mutex mutex;  // Guards everything below.
  std::shared_ptr<void> owner;
  wire::TraceRing* ring = nullptr;
  std::optional<TimePoint> step_began;  // Only of a step that began while `on`.
  std::int64_t last_step = -1;
} tracing;

std::int64_t in_ns(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Whether the agent wants spans now. Needs the mutex.
bool look() {
  const bool on = tracing.ring != nullptr && tracing.ring->on.load(std::memory_order_relaxed) != 0;
  tracing.on.store(on, std::memory_order_relaxed);
  return on;
}

}  // namespace

bool is_traced() { return tracing.on.load(std::memory_order_relaxed); }

void note_traced() {
  if (!is_traced()) tracing.on.store(true, std::memory_order_relaxed);
}

void trace_into(std::shared_ptr<void> owner, wire::TraceRing& ring) {
  const std::lock_guard lock(tracing.mutex);
  tracing.owner = std::move(owner);
  tracing.ring = &ring;
  tracing.step_began.reset();
  tracing.last_step = -1;
  if (look()) tracing.step_began = Clock::now();
}

void trace_span(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
                std::int64_t index) {
  wire::TraceSpan span;
  span.begin_ns = in_ns(begin);
  span.end_ns = in_ns(end);
  span.index = index;
  wire::set_lane(span, lane);
  wire::set_name(span, name);
  const std::lock_guard lock(tracing.mutex);
  if (look()) wire::put_span(*tracing.ring, span);
}

void trace_training_begins(std::int64_t step, TimePoint now) {
  const std::lock_guard lock(tracing.mutex);
  tracing.last_step = step;
  tracing.step_began.reset();
  if (is_traced()) tracing.step_began = now;
}

void trace_step_ends(std::int64_t step, TimePoint now) {
  std::optional<TimePoint> began;
  {
    const std::lock_guard lock(tracing.mutex);
    const bool is_on = look();
    began = std::exchange(tracing.step_began, std::nullopt);
    const bool is_new = std::exchange(tracing.last_step, step) != step;
    if (!is_on) return;
    tracing.step_began = now;
    if (!is_new) return;  // An evaluation, for example, repeats the step.
  }
  if (began) trace_span("step", "step", *began, now, step);
}

}  // namespace runtime

TraceScope::TraceScope(std::string_view lane, std::string_view name, std::int64_t index)
    : is_on_(runtime::is_traced()), index_(index) {
  if (!is_on_) return;
  lane_ = lane;
  name_ = name;
  begin_ = Clock::now();
}

TraceScope::~TraceScope() {
  if (is_on_) runtime::trace_span(lane_, name_, begin_, Clock::now(), index_);
}

}  // namespace ddp
