#include "worker/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "worker/data/random.h"

namespace ddp {

DistributedSampler::DistributedSampler(const Config& config) : config_(config) {
  DDP_CHECK(config.dataset_size > 0 && config.batch_size > 0, "dataset {} batch {}",
            config.dataset_size, config.batch_size);
  DDP_CHECK(config.rank >= 0 && config.rank < config.world_size, "rank {} of {}", config.rank,
            config.world_size);
  batch_.reserve(static_cast<std::size_t>(config.batch_size));
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t position) {
  DDP_CHECK(position >= 0, "position {}", position);
  position_ = position;
  if (epoch == epoch_) return;
  epoch_ = epoch;
  permutation_.resize(static_cast<std::size_t>(config_.dataset_size));
  std::iota(permutation_.begin(), permutation_.end(), 0);
  if (!config_.shuffle) return;
  Random random({config_.seed, 0x73616d706c6572, static_cast<std::uint64_t>(epoch)});
  for (std::size_t i = permutation_.size() - 1; i > 0; --i) {  // Fisher-Yates.
    std::swap(permutation_[i], permutation_[random.below(i + 1)]);
  }
}

std::int64_t DistributedSampler::steps_from(std::int64_t position) const {
  const std::int64_t left = config_.dataset_size - position;
  if (left <= 0) return 0;
  return config_.drop_last ? left / joint_batch() : (left + joint_batch() - 1) / joint_batch();
}

std::int64_t DistributedSampler::steps_left() const { return steps_from(position_); }
std::int64_t DistributedSampler::steps_per_epoch() const { return steps_from(0); }

std::int64_t DistributedSampler::size_at(std::int64_t position) const {
  const std::int64_t left = config_.dataset_size - position;
  return std::min(config_.batch_size, (left + config_.world_size - 1) / config_.world_size);
}

void DistributedSampler::take(Rank rank, std::int64_t position,
                              std::vector<std::int64_t>& batch) const {
  batch.clear();
  const std::int64_t size = size_at(position);
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t at = position + rank + i * config_.world_size;
    if (at >= config_.dataset_size) break;
    batch.push_back(permutation_[static_cast<std::size_t>(at)]);
  }
}

std::span<const std::int64_t> DistributedSampler::next_batch() {
  batch_.clear();
  if (steps_left() == 0) return batch_;
  batch_begin_ = position_;
  take(config_.rank, position_, batch_);
  const std::int64_t taken = size_at(position_) * config_.world_size;
  position_ = std::min(position_ + taken, config_.dataset_size);
  return batch_;
}

std::vector<std::int64_t> DistributedSampler::batch_of(Rank rank) const {
  DDP_CHECK(rank >= 0 && rank < config_.world_size, "rank {} of {}", rank, config_.world_size);
  std::vector<std::int64_t> batch;
  take(rank, batch_begin_, batch);
  return batch;
}

}  // namespace ddp
