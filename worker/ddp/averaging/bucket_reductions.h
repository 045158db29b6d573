#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>

#include "common/base/shared_text.h"
#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/averaging/gradient_slots.h"
#include "worker/ddp/averaging/hook_runner.h"
#include "worker/ddp/averaging/sparse_reduction.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The buckets of a reducer: their memory, and the operations that average them. Every piece of a
// bucket (worker/buckets/pieces.h) is launched at most once in a backward; then finish_stages(),
// then wait() for each bucket. All ranks make the same calls in the same order. Used by one thread
// at a time.
class BucketReductions {
 public:
  enum class Kind {
    kOrdinary,  // Averaged, or given to the hook.
    kPlain,     // Averaged, even if there is a hook.
    kSparse,    // One parameter, whose gradient is sparse.
  };
  struct Plan {
    std::vector<BucketLayout> layouts;
    std::vector<Kind> kinds;
  };

  // `element_type`: the buckets' type, if it differs from the parameters'. Without `piece_limits`
  // every bucket is one piece. The slots must outlive this object. `group` is for host memory;
  // `device_groups` have the same ranks and are for device memory (see BucketRoute).
  BucketReductions(std::shared_ptr<ProcessGroup> group, std::vector<DeviceGroup> device_groups,
                   GradientSlots& slots, std::optional<at::ScalarType> element_type,
                   std::optional<PieceLimits> piece_limits);

  // Adopts a plan. With memory, it allocates the buckets and gives the gradients their slots;
  // gradients that are views move there with their values. Call it between backwards.
  void build(Plan plan, bool with_memory);
  bool has_memory() const { return has_memory_; }

  // From then on each ordinary bucket is one piece. Call it between backwards.
  void set_hook(std::shared_ptr<CommHook> hook);
  CommHook* hook() const { return hook_.get(); }

  const std::vector<BucketLayout>& layouts() const { return layouts_; }
  Kind kind(std::size_t bucket) const { return buckets_[bucket].kind; }

  // In the order in which they are launched: bucket after bucket.
  const std::vector<BucketPiece>& pieces() const { return pieces_; }
  // The piece's name, in errors and for the group.
  const std::string& tag(std::size_t piece) const { return reductions_[piece].tag.str(); }

  // Starts to average a piece that has been staged; for a sparse bucket it averages `gradient`.
  // kSum leaves the division to wait(). If a hook throws, throws std::runtime_error naming the hook
  // and the bucket.
  void launch(std::size_t piece, ReduceOp op, const at::Tensor& gradient);
  // Whether a launched piece is known to be reduced. Does not wait.
  bool is_done(std::size_t piece) const;
  // Runs what needs several operations (hooks, sparse buckets) up to its last operation.
  void finish_stages();
  // Waits for a bucket and multiplies it by `scale`, unless a hook reduced it. Returns the gradient
  // of a sparse bucket.
  at::Tensor wait(std::size_t bucket, double scale);
  // Waits until no operation uses the memory of a bucket. Never throws.
  void drain();

 private:
  struct Bucket {
    Kind kind = Kind::kOrdinary;
    GradBucket* memory = nullptr;
    std::optional<BucketRoute> route;  // Of `memory`.
    std::unique_ptr<SparseReduction> sparse;
    std::size_t first_piece = 0;
    std::size_t pieces = 0;
  };
  struct Reduction {  // One per piece.
    SharedText tag;
    WorkPtr work;
    bool is_launched = false;
  };
  void allocate();
  void cut();
  bool is_hooked(const Bucket& bucket) const { return hook_ && bucket.kind == Kind::kOrdinary; }

  std::shared_ptr<ProcessGroup> group_;
  std::vector<DeviceGroup> device_groups_;
  GradientSlots& slots_;
  std::optional<at::ScalarType> element_type_;
  std::optional<PieceLimits> piece_limits_;
  std::shared_ptr<CommHook> hook_;
  HookRunner runner_;
  std::vector<BucketLayout> layouts_;
  std::vector<Bucket> buckets_;
  std::vector<BucketPiece> pieces_;
  std::vector<Reduction> reductions_;  // By piece.
  std::vector<GradBucket> ordinary_;
  std::vector<GradBucket> plain_;
  bool has_memory_ = false;
};

}  // namespace ddp
