#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/runtime/commit_pace.h"

namespace ddp::runtime {

// Decides at which steps to commit. Every rank has one and asks it after each step. Rank 0's
// measures and proposes; its proposal travels with the commit, so that all ranks agree. Pure.
//
// The first step of each round is committed. Once a commit and the steps before it have been
// measured, commits are as far apart as the share requires, but an interval is at most kGrowth
// times the one before. It uses medians of the last kRemembered values, so a slow step (an
// evaluation, a neighbour's load) or a commit that waited for another rank changes little. One
// thread.
class CommitPacer {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr std::int64_t kGrowth = 4;
  static constexpr std::int64_t kLongest = 1'000'000;  // Steps.

  // Throws std::invalid_argument for an invalid pace.
  explicit CommitPacer(const CommitPace& pace = {});

  // A round begins. Measurements from the previous round still hold.
  void begin();
  // A step is done. Returns whether to commit it.
  bool step();

  // A commit begins or has ended, at this time of a monotonic clock, in seconds. Call them also for
  // commits that step() did not ask for. A commit that had to make its buffers is not measured.
  void commit_begins(double now);
  void commit_ended(double now, bool made_buffers);

  // After how many steps the next commit is due, by this rank's measurements.
  std::int64_t proposal() const;
  // Adopts rank 0's proposal, which all ranks learn with the commit.
  void agree(std::int64_t steps);

 private:
  using Seconds = std::vector<double>;  // The last kRemembered, oldest first.
  static void remember(Seconds& all, double value);
  static double median(Seconds all);

  CommitPace pace_;
  std::int64_t interval_ = 1;  // Agreed.
  std::int64_t steps_ = 0;     // Since the last commit.
  double began_ = 0;           // When the last commit began.
  double ended_ = -1;          // When it ended; negative before the first of a round.
  Seconds step_seconds_;
  Seconds commit_seconds_;
};

}  // namespace ddp::runtime
