#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Records what a rank did and when, as JSON trace events for chrome://tracing or ui.perfetto.dev.
// Each rank is a process, and each lane a row. DistributedDataParallel::set_trace fills it: lanes
// "compute" (forward, backward), "bucket N" (filling, waiting for its turn, reducing) and "reducer"
// (what delays the end of backward). A training loop may add its own:
//
//   auto trace = std::make_shared<ddp::Trace>(group->rank());
//   model.set_trace(trace);
//   for (...) { const ddp::Trace::Scope step(trace.get(), "loop", "step 17"); ... }
//   trace->write("trace.json", *group);
//
// Spans of one lane nest or follow one another. Any thread may call. Memory is bounded: once there
// are `limit` spans, later ones are counted and dropped.
class Trace {
 public:
  explicit Trace(Rank rank, std::size_t limit = 1000000);

  void span(std::string_view lane, std::string name, TimePoint begin, TimePoint end);

  // From construction to destruction; a null trace records nothing.
  class [[nodiscard]] Scope {
   public:
    Scope(Trace* trace, std::string_view lane, std::string name)
        : trace_(trace), lane_(lane), name_(std::move(name)), begin_(Clock::now()) {}
    ~Scope() {
      if (trace_ != nullptr) trace_->span(lane_, std::move(name_), begin_, Clock::now());
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Trace* trace_;
    std::string lane_;
    std::string name_;
    TimePoint begin_;
  };

  // This rank's spans. Throws std::runtime_error naming the file.
  void write(const std::string& file) const;
  // All ranks' spans, in one file that rank 0 writes. Collective; throws CollectiveError, or on
  // every rank the error of writing. Times are those of the ranks' wall clocks.
  void write(const std::string& file, ProcessGroup& group) const;

  std::size_t size() const;
  std::size_t dropped() const;

 private:
  struct Span {
    std::size_t lane;
    std::string name;
    TimePoint begin;
    TimePoint end;
  };
  std::string events() const;
  std::size_t lane_number(std::string_view lane);

  const Rank rank_;
  const std::size_t limit_;
  const std::chrono::nanoseconds to_wall_clock_;  // What to add to a TimePoint.
  mutable std::mutex mutex_;
  std::vector<std::string> lanes_;
  std::vector<Span> spans_;
  std::size_t dropped_ = 0;
};

}  // namespace ddp
