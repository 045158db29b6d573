#pragma once

#include <cstdint>
#include <memory>

#include "worker/ddp/broadcast.h"
#include "worker/ddp/module_state.h"
#include "worker/ddp/reducer.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct DistributedDataParallelOptions {
  // A bucket is reduced once it holds this many MiB. The first to fill may be smaller, so that
  // communication starts early; it is never larger than the others.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  // Rank 0's buffers (batch norm's running statistics) replace those of all ranks at the start of a
  // forward in training mode that follows a reduced backward.
  bool broadcast_buffers = true;
  // Allow parameters that got no gradient in a backward. Costs one small exchange in each.
  bool find_unused_parameters = false;
  // .grad is the reduced bucket itself: saves a copy and the memory of one set of gradients.
  bool gradient_as_bucket_view = false;
  // Verify and broadcast at construction. Without it the caller answers for equal models.
  bool init_sync = true;
};

// What DistributedDataParallel does whatever the module's type; see there.
class DataParallelCore {
 public:
  DataParallelCore(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                   const DistributedDataParallelOptions& options);

  void before_forward(bool is_training);
  void broadcast_buffers();
  Reducer& reducer() { return *reducer_; }
  ProcessGroup& group() { return *group_; }

 private:
  std::shared_ptr<ProcessGroup> group_;
  bool broadcast_buffers_;
  CoalescedBroadcast buffers_;
  std::unique_ptr<Reducer> reducer_;
  std::uint64_t buffers_as_of_ = 0;  // The reducer's passes when buffers were last equal.
};

}  // namespace ddp
