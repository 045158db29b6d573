#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"

// What this rank does when, for whoever asks ddp-run for a trace (--trace FILE, SIGUSR2, `ddp-run
// trace`). libddp records operations, messages, waits, steps, forward, backward, buckets, the
// optimizer and checkpoints by itself. Programs may add spans of their own:
//
//   { const ddp::TraceScope input("input", "next batch"); batch = loader.next(); }
//
// Any thread may call; a child by fork records nothing. While nobody asks, all that happens is that
// a variable is read; it is set when a step or an operation ends. A process without ddp-run records
// nothing.
namespace ddp {

// From construction to destruction. `lane` is the row; time in "input" and in
// "checkpoint" counts as such in the summary. Spans of one row nest or follow one another. Both
// are cut after 32 bytes. index: of the step, for example; -1: none.
class [[nodiscard]] TraceScope {
 public:
  explicit TraceScope(std::string_view lane, std::string_view name, std::int64_t index = -1);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  bool is_on_;
  std::string lane_;
  std::string name_;
  std::int64_t index_;
  TimePoint begin_;
};

}  // namespace ddp
