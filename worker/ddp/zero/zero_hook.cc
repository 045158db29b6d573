#include "worker/ddp/zero/zero_hook.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/works.h"

namespace ddp {

ZeroHook::ZeroHook(buckets::ZeroPartition partition, ProcessGroup& group)
    : partition_(std::move(partition)), group_(group), buckets_(partition_.buckets().size()) {}

Future ZeroHook::run(GradBucket& bucket) {
  if (!is_open_) {
    throw std::logic_error(
        "the model's ZeroRedundancyOptimizer is gone; without it the ranks would drift apart");
  }
  DDP_CHECK(bucket.index() < buckets_.size(), "bucket {} of {}", bucket.index(), buckets_.size());
  Bucket& known = buckets_[bucket.index()];
  if (known.tag.empty()) {
    known.tag =
        SharedText(fmt::format("bucket {} of {} ({} .. {})", bucket.index(), buckets_.size(),
                               bucket.names().back(), bucket.names().front()));
  }
  known.buffer = bucket.buffer();
  if (group_.size() == 1) return Future(known.buffer);
  const Buffer all = buffer_of(known.buffer);
  const std::size_t share = partition_.buckets()[bucket.index()].share;
  const std::size_t divided = partition_.divided(bucket.index());
  const std::size_t element = dtype_bytes(all.type);
  auto* const data = static_cast<std::byte*>(all.data);
  WorkPtr own;
  WorkPtr common;
  if (share > 0) {
    own = group_.reduce_scatter(
        {data, divided, all.type},
        {data + static_cast<std::size_t>(group_.rank()) * share * element, share, all.type},
        ReduceOp::kAvg, {{}, known.tag});
  }
  if (divided < all.count) {
    common = group_.all_reduce({data + divided * element, all.count - divided, all.type},
                               ReduceOp::kAvg, {{}, known.tag});
  }
  return Future(join_works({std::move(own), std::move(common)}), known.buffer);
}

}  // namespace ddp
