#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"
#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/averaging/gradient_slots.h"
#include "worker/ddp/averaging/hook_runner.h"
#include "worker/ddp/averaging/sparse_reduction.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The buckets of a reducer: their memory, the gradients' slots in them, and the operations that
// average them. In a reduction the driver stages gradients (slots()), launches every piece of a
// bucket (worker/buckets/pieces.h) at most once, calls finish_stages(), and then wait() and
// publish() for each bucket. All ranks make the same calls in the same order. Used by one thread at
// a time.
class GradientBuckets {
 public:
  enum class Kind {
    kOrdinary,  // Averaged, or given to the hook.
    kPlain,     // Averaged, even if there is a hook.
    kSparse,    // One parameter, whose gradient is sparse.
  };
  struct Plan {
    std::vector<buckets::BucketLayout> layouts;
    std::vector<Kind> kinds;
  };

  struct Options {
    GradientSlots::Options slots = {};
    // For device memory, with the same ranks as the group for host memory (see BucketRoute).
    std::vector<DeviceGroup> device_groups = {};
    std::optional<at::ScalarType> element_type = {};  // The buckets', if not the parameters'.
    std::optional<buckets::PieceLimits> pieces = {};  // Without, every bucket is one piece.
  };

  // `group` is for host memory.
  GradientBuckets(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
                  Options options);

  // Adopts a plan. With memory, it allocates the buckets and gives the gradients their slots;
  // gradients that are views move there with their values. Call it between reductions.
  void build(Plan plan, bool with_memory);
  bool has_memory() const { return has_memory_; }

  GradientSlots& slots() { return slots_; }
  const GradientSlots& slots() const { return slots_; }

  // From then on each ordinary bucket is one piece. Call it between reductions.
  void set_hook(std::shared_ptr<CommHook> hook);
  CommHook* hook() const { return hook_.get(); }

  const std::vector<buckets::BucketLayout>& layouts() const { return layouts_; }
  Kind kind(std::size_t bucket) const { return buckets_[bucket].kind; }
  // Whether it is in memory, and in float16.
  bool is_half(std::size_t bucket) const {
    const GradBucket* memory = buckets_[bucket].memory;
    return memory != nullptr && memory->buffer().scalar_type() == at::kHalf;
  }

  // In the order in which they are launched: bucket after bucket.
  const std::vector<buckets::BucketPiece>& pieces() const { return pieces_; }
  // The piece's name, in errors and for the group.
  const std::string& tag(std::size_t piece) const { return reductions_[piece].tag.str(); }

  // Starts to find out which parameters some rank uses (GradientSlots::is_used); finish_stages()
  // waits for it.
  void exchange_used() { flags_ = slots_.exchange_used(*group_); }
  // Starts to average a piece that has been staged. The piece of a sparse bucket is its parameter's
  // .grad; without `has_gradients`, nothing. kSum leaves the division to wait(). If a hook throws,
  // throws std::runtime_error naming the hook and the bucket.
  void launch(std::size_t piece, ReduceOp op, bool has_gradients = true);
  // Whether a launched piece is known to be reduced. Does not wait.
  bool is_done(std::size_t piece) const;
  // Runs what needs several operations (hooks, sparse buckets) up to its last operation.
  void finish_stages();
  // Waits for a bucket and multiplies it by `scale`, unless a hook reduced it.
  void wait(std::size_t bucket, double scale);
  // Gives the parameters of a bucket that was waited for their .grad. In a bucket that was not
  // launched no parameter is used.
  void publish(std::size_t bucket);
  // Waits until no operation uses this object's memory. Never throws.
  void drain();

  // Aborts the groups, unless there is only one rank.
  void abort(const std::string& reason) { abort_all(*group_, options_.device_groups, reason); }

 private:
  struct Bucket {
    Kind kind = Kind::kOrdinary;
    GradBucket* memory = nullptr;
    std::optional<BucketRoute> route;  // Of `memory`.
    std::unique_ptr<SparseReduction> sparse;
    at::Tensor sparse_average;
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
  Options options_;
  GradientSlots slots_;
  std::shared_ptr<CommHook> hook_;
  HookRunner runner_;
  WorkPtr flags_;
  std::vector<buckets::BucketLayout> layouts_;
  std::vector<Bucket> buckets_;
  std::vector<buckets::BucketPiece> pieces_;
  std::vector<Reduction> reductions_;  // By piece.
  std::vector<GradBucket> ordinary_;
  std::vector<GradBucket> plain_;
  bool has_memory_ = false;
};

}  // namespace ddp
