#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/line_assembler.h"

// Where the time of each rank's steps went, from a trace. Pure.
namespace ddp::trace {

// Times are microseconds.
struct Interval {
  double begin = 0;
  double end = 0;
};

// What one rank did in an operation.
struct Taken {
  int round = 0;
  std::string group;
  std::int64_t sequence = 0;
  double issued = 0;
  Interval ran;
};

struct RankTrace {
  std::vector<Interval> steps;
  std::vector<Interval> waits;  // The training thread waits for other ranks.
  std::vector<Interval> inputs;
  std::vector<Interval> checkpoints;
  std::vector<Taken> operations;
};

// Reads a trace of ours, event by event; in the order in which it was written.
class TraceEventsReader {
 public:
  // Any part of the text, as it comes. What is no event of ours is left out.
  void take(std::string_view text);
  const std::map<int, RankTrace>& ranks() const { return ranks_; }

 private:
  void take_line(std::string_view line);

  LineAssembler lines_;
  std::map<int, RankTrace> ranks_;
};

// The means over a rank's steps, in microseconds a step.
struct RankSummary {
  std::size_t steps = 0;
  double step = 0;
  double compute = 0;  // What is left.
  double waiting = 0;  // Until the last rank has come to the operation.
  double moving = 0;   // From then on.
  double input = 0;
  double checkpoint = 0;
  std::map<int, double> waiting_for{};  // By the rank that was waited for.
};

std::map<int, RankSummary> summarize(const std::map<int, RankTrace>& ranks);
// A table for people, with a sentence about who holds up the others. Says so if there are no steps.
std::string summary_text(const std::map<int, RankSummary>& ranks);

}  // namespace ddp::trace
