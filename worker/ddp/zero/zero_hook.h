#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"
#include "worker/buckets/zero_partition.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Averages this rank's part of a bucket, in place, and the part that all ranks have; the rest keeps
// this rank's own values. It is the first half of an all_reduce, and as fast.
class ZeroHook final : public CommHook {
 public:
  // The group outlives the hook.
  ZeroHook(buckets::ZeroPartition partition, ProcessGroup& group);

  // The optimizer is destroyed, and with it the second half: from here on run() throws.
  void close() { is_open_ = false; }

  std::string name() const override { return "zero"; }
  Future run(GradBucket& bucket) override;

  // Of the last backward that was reduced.
  const at::Tensor& buffer(std::size_t bucket) const { return buckets_[bucket].buffer; }

 private:
  struct Bucket {
    at::Tensor buffer;
    SharedText tag;
  };
  buckets::ZeroPartition partition_;
  ProcessGroup& group_;
  std::vector<Bucket> buckets_;
  bool is_open_ = true;
};

}  // namespace ddp
