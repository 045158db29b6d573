#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/bucket_names.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/averaging/gradient_buckets.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Averages .grad over the ranks when reduce() is called. DistributedOptimizer is made of it. It
// uses no autograd hooks: it averages whatever the backwards before have left in .grad.
//
// Buckets are the Reducer's (gradient_buckets.h). They are kept from one reduction to the next, and
// one is reduced while the next is being filled. Every call is collective, with parameters of
// the same number, shapes and types in the same order on all ranks. Parameters that require no
// gradient, and repeated ones, are skipped. When the list has changed, the ranks compare it first.
// An undefined gradient counts as zero; if it is undefined on every rank it stays undefined. A
// sparse gradient is made dense, and its average is dense.
//
// In a group of one, only a communication hook has an effect.
class GradientReducer {
 public:
  // `group` is for host memory. Throws std::invalid_argument for a bucket_cap_mb below 0 or above
  // 1048576, or for device groups that check_device_groups refuses.
  explicit GradientReducer(std::shared_ptr<ProcessGroup> group,
                           const DistributedOptimizerOptions& options = {});
  // Waits for operations in flight.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Names a parameter of the list, for errors and hooks. Without it names are "parameter 3" and so
  // on.
  using Naming = std::function<std::string(const at::Tensor& parameter, std::size_t index)>;
  void set_naming(Naming naming) { naming_ = std::move(naming); }

  // Replaces averaging by a hook. Call it once, before the first reduction; otherwise it throws
  // std::logic_error.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // Throws CollectiveError. Throws std::invalid_argument if the parameters differ between ranks;
  // the group stays usable then. Aborts the group, then throws: std::invalid_argument for a
  // gradient that cannot be reduced, or what the hook throws.
  void reduce(const std::vector<at::Tensor>& parameters);

  // Those of the last reduction. Empty before the first.
  BucketNames bucket_layout() const;

 private:
  struct Listed {
    at::Tensor tensor;
    bool requires_grad = false;
  };
  bool is_planned(const std::vector<at::Tensor>& parameters) const;
  void plan(const std::vector<at::Tensor>& parameters);
  void exchange();

  std::shared_ptr<ProcessGroup> group_;
  const DistributedOptimizerOptions options_;
  Naming naming_;
  std::shared_ptr<CommHook> hook_;

  std::vector<Listed> listed_;  // The parameters that buckets_ were planned for.
  std::unique_ptr<GradientBuckets> buckets_;
};

}  // namespace ddp
