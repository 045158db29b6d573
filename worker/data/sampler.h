#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace ddp {

// Deals the indices of a data set to the ranks. Every epoch has one permutation of 0 ..
// dataset_size - 1, a function of (seed, epoch) alone; rank r takes its elements r, r + world, r +
// 2 world, ... Batch k of all ranks together is therefore block k of world * batch elements of the
// permutation: the same joint batches as one process with that batch size has, whatever the world.
//
// The position counts the elements of the permutation that all ranks together have used. Save it
// and give it to set_epoch, and training goes on exactly there, without losing or repeating a
// sample, also in a world of another size.
//
// A value type without communication: all ranks construct it alike. One thread at a time.
class DistributedSampler {
 public:
  struct Config {
    std::int64_t dataset_size = 0;  // Greater than 0.
    std::int64_t batch_size = 1;    // Of one rank.
    Rank rank = 0;
    int world_size = 1;
    std::uint64_t seed = 0;
    bool shuffle = true;  // false: every epoch is 0 .. dataset_size - 1 in this order.
    // true: an incomplete joint batch at the end of an epoch is left out, so every step averages
    // over world * batch samples. false: it is dealt as it is, so some ranks get one sample less
    // than others, and where there are fewer samples than ranks, the highest ranks get none.
    bool drop_last = true;
  };

  explicit DistributedSampler(const Config& config);

  // Goes to `position` of the permutation of `epoch`. 0 <= position.
  void set_epoch(std::int64_t epoch, std::int64_t position = 0);

  // This rank's indices of the next batch; empty at the end of the epoch, and for a rank without
  // samples in an uneven last batch. Valid until the next call. Advances the position by what all
  // ranks take in this step.
  std::span<const std::int64_t> next_batch();

  // What another rank takes in the step for which next_batch returned this rank's indices.
  std::vector<std::int64_t> batch_of(Rank rank) const;

  std::int64_t epoch() const { return epoch_; }
  std::int64_t position() const { return position_; }
  // Calls of next_batch that still return a batch.
  std::int64_t steps_left() const;
  // Steps of a whole epoch.
  std::int64_t steps_per_epoch() const;

 private:
  std::int64_t joint_batch() const { return config_.batch_size * config_.world_size; }
  std::int64_t steps_from(std::int64_t position) const;
  void take(Rank rank, std::int64_t position, std::vector<std::int64_t>& batch) const;
  std::int64_t size_at(std::int64_t position) const;  // The largest batch of any rank.

  Config config_;
  std::int64_t epoch_ = -1;
  std::int64_t position_ = 0;
  std::int64_t batch_begin_ = 0;  // The position of the batch that next_batch returned.
  std::vector<std::int64_t> permutation_;
  std::vector<std::int64_t> batch_;
};

}  // namespace ddp
