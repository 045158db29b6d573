#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace ddp::rendezvous {

// Decides which ranks of a round are late. All ranks take equally long for a step, because they
// wait for the slowest in collectives. So ranks tell how much of their time they do not wait
// (wire::Computed), and a rank is late that computes longer for a step than the others. Time comes
// from the caller; nothing here reads a clock.
//
// The round is cut into blocks of two seconds or more. A block ends when every rank has made a step
// in it, so a pause in which one rank works alone and the others wait for it (a checkpoint, a
// validation, a garbage collection) is in one block, however long it takes. In a block, a rank
// counts as late if it computes 1.2 times as long a step as the median of the others, and 5 ms
// more. It becomes late, or ceases to be, only after ten blocks in a row: what one block says may
// be noise of the machine, and ranks that are late in turns are not late. On a busy machine, where
// the ratios of all ranks change much from block to block, a rank must stand out from that, too.
class Lateness {
 public:
  static constexpr Duration kBlock{2'000};
  static constexpr double kRatio = 1.2;
  // Of a step, in milliseconds. Less is within what a scheduler does.
  static constexpr double kDifference = 5;
  static constexpr int kBlocks = 10;
  // How far a rank must stand out from the mean change of ratios (as logarithms) between two
  // blocks: a little more than two standard deviations.
  static constexpr double kNoise = 2;
  // After so many blocks in a row beyond --exclude-stragglers a rank is beyond it.
  static constexpr int kBlocksBeyond = 15;

  struct Late {
    Rank rank = -1;
    // For a step, in the newest block, in milliseconds.
    double computes_ms = 0;
    double others_ms = 0;  // The median of the other ranks.
    TimePoint since;       // The beginning of the first block in which it was late.

    double ratio() const;
  };
  // What the end of a block has changed. In the order of ranks.
  struct Changes {
    std::vector<Late> began;
    std::vector<Late> ended;
  };

  // `limit`: --exclude-stragglers; 0: none.
  explicit Lateness(double limit = 0) : limit_(limit) {}

  // Forgets everything: another round begins.
  void begin_round(TimePoint now, int world_size);
  // What a rank has told. Nothing unless a block ends with it.
  std::optional<Changes> report(TimePoint now, Rank rank, std::int64_t step, double computed_ms);
  const std::map<Rank, Late>& late() const { return late_; }
  // The late rank with the largest ratio of those that are beyond the limit.
  std::optional<Late> beyond_limit() const;

 private:
  struct Account {
    // At the beginning of the block; -1: the rank has told nothing.
    std::int64_t first_step = -1;
    double first_ms = 0;
    std::int64_t step = -1;  // As told last.
    double ms = 0;
    double log_ratio = 0;  // Of the block before.
    int against = 0;       // Blocks in a row that say the opposite of what it counts as.
    TimePoint against_since;
    int beyond = 0;  // Blocks in a row beyond the limit.

    bool advanced() const { return step > first_step; }
    double per_step() const { return (ms - first_ms) / static_cast<double>(step - first_step); }
  };

  Changes end_block(TimePoint now);
  void judge(Rank rank, double computes_ms, double others_ms, Changes& changes);

  const double limit_;
  std::vector<Account> accounts_;  // By rank.
  std::size_t advanced_ = 0;       // How many have made a step in this block.
  TimePoint block_began_;
  int blocks_ = 0;    // That have ended.
  double noise_ = 0;  // The mean change of log_ratio between two blocks, of all ranks.
  std::map<Rank, Late> late_;
};

}  // namespace ddp::rendezvous
