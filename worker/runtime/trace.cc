#include "worker/runtime/trace.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include <pthread.h>

#include "common/base/check.h"
#include "common/base/monotonic_ns.h"
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

// Whether the agent wants spans now. Needs the mutex.
bool look() {
  const bool on = tracing.ring != nullptr && tracing.ring->on.load(std::memory_order_relaxed) != 0;
  tracing.on.store(on, std::memory_order_relaxed);
  return on;
}

// A child of this process is no rank.
void lock_account() { tracing.mutex.lock(); }
void unlock_account() { tracing.mutex.unlock(); }
void leave_in_child() {
  tracing.ring = nullptr;
  look();
  unlock_account();
}

}  // namespace

bool is_traced() { return tracing.on.load(std::memory_order_relaxed); }

void note_traced() {
  if (!is_traced()) tracing.on.store(true, std::memory_order_relaxed);
}

void trace_into(std::shared_ptr<void> owner, wire::TraceRing& ring) {
  static const int kRegistered = ::pthread_atfork(lock_account, unlock_account, leave_in_child);
  DDP_CHECK(kRegistered == 0, "pthread_atfork: errno {}", kRegistered);
  const std::lock_guard lock(tracing.mutex);
  tracing.owner = std::move(owner);
  tracing.ring = &ring;
  tracing.step_began.reset();
  tracing.last_step = -1;
  if (look()) tracing.step_began = Clock::now();
}

void trace_nowhere() {
  std::shared_ptr<void> owner;  // Goes after the lock.
  const std::lock_guard lock(tracing.mutex);
  owner = std::move(tracing.owner);
  tracing.ring = nullptr;
  look();
}

void trace_span(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
                std::int64_t index) {
  wire::TraceSpan span;
  span.begin_ns = monotonic_ns(begin);
  span.end_ns = monotonic_ns(end);
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
    // A commit, for example, tells the step again. What comes after a step is of the next one.
    if (std::exchange(tracing.last_step, step) == step) return;
    began = std::exchange(tracing.step_began, std::nullopt);
    if (!is_on) return;
    tracing.step_began = now;
  }
  if (began) trace_span("step", "step", *began, now, step);
}

}  // namespace runtime

namespace {

// Rows whose meaning the summary knows are libddp's own.
bool is_taken(std::string_view lane) {
  constexpr std::array<std::string_view, 10> kTaken{
      "step",       "compute", "wait",  "reducer", "bucket",
      "collective", "group",   "round", "ranks",   wire::kMessagesLane};
  const std::string_view word = lane.substr(0, lane.find(' '));
  return std::find(kTaken.begin(), kTaken.end(), word) != kTaken.end();
}

}  // namespace

std::string runtime::program_lane(std::string_view lane) {
  if (lane.empty() || lane.front() == '\0') return "program";  // An operation's lane is empty.
  return is_taken(lane) ? "program " + std::string(lane) : std::string(lane);
}

TraceScope::TraceScope(std::string_view lane, std::string_view name, std::int64_t index)
    : is_on_(runtime::is_traced()), index_(index) {
  if (!is_on_) return;
  lane_ = runtime::program_lane(lane);
  name_ = name;
  begin_ = Clock::now();
}

TraceScope::~TraceScope() {
  if (is_on_) runtime::trace_span(lane_, name_, begin_, Clock::now(), index_);
}

}  // namespace ddp
