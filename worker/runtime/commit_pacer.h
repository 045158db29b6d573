#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp {

// How often ElasticState::commit_if_due() commits.
struct CommitPace {
  std::int64_t every = 0;  // Steps; 0: measured, so that commits take `share` of the time at most.
  double share = 0.01;     // More than 0 and less than 1.
};

// Decides at which steps to commit. Every rank has one and asks it after each step; rank 0's
// measures and proposes, and what it proposes travels with the commit, so that all agree. Pure.
//
// The first step of each round is committed. Once a commit and the steps before it have been
// measured, commits are as far apart as the share needs, at first at most kGrowth times as far as
// the two before. Medians of the last kRemembered are taken, so neither a slow step (an evaluation,
// a neighbour's load) nor a commit that waited for another rank changes much. One thread.
class CommitPacer {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr std::int64_t kGrowth = 4;
  static constexpr std::int64_t kLongest = 1'000'000;  // Steps.

  // std::invalid_argument for a pace that makes no sense.
  explicit CommitPacer(const CommitPace& pace = {});

  // A round begins. What was measured in the one before still holds.
  void begin();
  // A step has been made: whether it is to be committed.
  bool step();

  // A commit begins or has ended, at these seconds of a clock that does not go back. Also of one
  // that nobody asked step() for. A commit that had to make its buffers is no measure.
  void commit_begins(double now);
  void commit_ended(double now, bool made_buffers);

  // How many steps after this commit the next one is due, by what this rank has measured.
  std::int64_t proposal() const;
  // What rank 0 proposes, known to all with the commit.
  void agree(std::int64_t steps);

 private:
  using Seconds = std::vector<double>;  // The last kRemembered, oldest first.
  static void remember(Seconds& all, double value);
  static double median(Seconds all);

  CommitPace pace_;
  std::int64_t interval_ = 1;  // Agreed.
  std::int64_t steps_ = 0;     // Since the last commit.
  double began_ = 0;           // The last commit.
  double ended_ = -1;          // Likewise; before the first of a round less than 0.
  Seconds step_seconds_;
  Seconds commit_seconds_;
};

}  // namespace ddp
