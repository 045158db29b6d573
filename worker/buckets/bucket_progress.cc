#include "worker/buckets/bucket_progress.h"

#include <algorithm>

#include "common/base/check.h"

namespace ddp::buckets {

BucketProgress::BucketProgress(const std::vector<BucketLayout>& buckets,
                               std::size_t parameter_count)
    : bucket_of_(parameter_count, buckets.size()), ready_(parameter_count, false) {
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (const BucketSlot& slot : buckets[bucket].slots) {
      DDP_CHECK(slot.parameter < parameter_count && bucket_of_[slot.parameter] == buckets.size(),
                "bucket {} holds parameter {} of {} a second time or out of range", bucket,
                slot.parameter, parameter_count);
      bucket_of_[slot.parameter] = bucket;
    }
    sizes_.push_back(buckets[bucket].slots.size());
  }
  DDP_CHECK(std::find(bucket_of_.begin(), bucket_of_.end(), buckets.size()) == bucket_of_.end(),
            "a parameter of {} is in no bucket", parameter_count);
  pending_ = sizes_;
}

void BucketProgress::begin() {
  pending_ = sizes_;
  std::fill(ready_.begin(), ready_.end(), false);
  launched_ = 0;
}

bool BucketProgress::mark_ready(std::size_t parameter) {
  DDP_CHECK(parameter < ready_.size(), "parameter {} of {}", parameter, ready_.size());
  if (ready_[parameter]) return false;
  ready_[parameter] = true;
  --pending_[bucket_of_[parameter]];
  return true;
}

std::optional<std::size_t> BucketProgress::next_launch() {
  if (all_launched() || pending_[launched_] != 0) return std::nullopt;
  return launched_++;
}

}  // namespace ddp::buckets
