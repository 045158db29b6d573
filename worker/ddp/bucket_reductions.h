#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>

#include "common/base/shared_text.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/comm_hook.h"
#include "worker/ddp/grad_bucket.h"
#include "worker/ddp/gradient_slots.h"
#include "worker/ddp/hook_runner.h"
#include "worker/ddp/sparse_reduction.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The buckets of a reducer: their memory, and the operations that make averages of them. Every
// bucket is launched at most once in a backward; then finish_stages(), then wait() for each. All
// ranks do the same in the same order. Used by one thread at a time.
class BucketReductions {
 public:
  enum class Kind {
    kOrdinary,  // Averaged, or given to the hook.
    kPlain,     // Averaged, whatever the hook.
    kSparse,    // One parameter, whose gradient is sparse.
  };
  struct Plan {
    std::vector<BucketLayout> layouts;
    std::vector<Kind> kinds;
  };

  // `element_type` is that of the buckets, if it is not the parameters'. The slots outlive this
  // object.
  BucketReductions(std::shared_ptr<ProcessGroup> group, GradientSlots& slots,
                   std::optional<at::ScalarType> element_type);

  // Takes a plan. With memory, buckets are allocated and gradients get their slots; values of
  // gradients that are views move. Between backwards.
  void build(Plan plan, bool with_memory);
  bool has_memory() const { return has_memory_; }

  void set_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }
  CommHook* hook() const { return hook_.get(); }

  const std::vector<BucketLayout>& layouts() const { return layouts_; }
  Kind kind(std::size_t bucket) const { return buckets_[bucket].kind; }
  const std::string& tag(std::size_t bucket) const { return buckets_[bucket].tag.str(); }

  // Starts to average what has been staged; of a sparse bucket, `gradient`. kSum leaves the
  // division to wait(). Throws what a hook throws as std::runtime_error that names the hook and the
  // bucket.
  void launch(std::size_t bucket, ReduceOp op, const at::Tensor& gradient);
  // Whether what was launched is reduced, as far as that is known without waiting.
  bool is_done(std::size_t bucket) const;
  // Everything that needs more than one operation, until the last one.
  void finish_stages();
  // Waits for a bucket and multiplies it by `scale`, unless a hook made it. Gives the gradient of a
  // sparse one.
  at::Tensor wait(std::size_t bucket, double scale);
  // Waits until no operation uses the memory of a bucket. Never throws.
  void drain();

 private:
  struct Bucket {
    Kind kind = Kind::kOrdinary;
    SharedText tag;
    GradBucket* memory = nullptr;
    std::unique_ptr<SparseReduction> sparse;
    WorkPtr work;
    bool is_launched = false;
  };
  void allocate();
  bool is_hooked(const Bucket& bucket) const { return hook_ && bucket.kind == Kind::kOrdinary; }

  std::shared_ptr<ProcessGroup> group_;
  GradientSlots& slots_;
  std::optional<at::ScalarType> element_type_;
  std::shared_ptr<CommHook> hook_;
  HookRunner runner_;
  std::vector<BucketLayout> layouts_;
  std::vector<Bucket> buckets_;
  std::vector<GradBucket> ordinary_;
  std::vector<GradBucket> plain_;
  bool has_memory_ = false;
};

}  // namespace ddp
