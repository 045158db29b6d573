#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "worker/buckets/plan.h"

namespace ddp::buckets {

// Tracks which gradients of one backward have arrived, and so which buckets may be reduced; pieces
// of buckets count as buckets (layout_of). Buckets are handed out strictly in index order, whatever
// the order of arrival, because all ranks must issue the same collectives in the same order. Not
// thread-safe.
class BucketProgress {
 public:
  // Every parameter below parameter_count is in exactly one bucket.
  BucketProgress(const std::vector<BucketLayout>& buckets, std::size_t parameter_count);

  // Forgets all arrivals.
  void begin();

  // False if the parameter had arrived before; nothing changes then.
  bool mark_ready(std::size_t parameter);

  // The next bucket to launch, once: the lowest not handed out, if all its parameters have arrived.
  std::optional<std::size_t> next_launch();
  bool all_launched() const { return launched_ == pending_.size(); }

 private:
  std::vector<std::size_t> bucket_of_;  // By parameter.
  std::vector<std::size_t> sizes_;      // Number of parameters, by bucket.
  std::vector<std::size_t> pending_;    // Parameters that have not arrived, by bucket.
  std::vector<bool> ready_;             // By parameter.
  std::size_t launched_ = 0;            // Buckets below this one were handed out.
};

}  // namespace ddp::buckets
