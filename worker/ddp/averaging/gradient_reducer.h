#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"
#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/averaging/hook_runner.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct GradientReducerOptions {
  // Gradients are reduced in buckets that close once they hold this many MiB. 0: one for each
  // element type. (torch_xla's ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB.)
  double bucket_cap_mb = 0;
  // .grad is the reduced bucket itself: saves a copy after the reduction, and the copy before it as
  // well if gradients are set to zero in place.
  bool gradient_as_bucket_view = false;
  // For parameters on other devices: see BucketRoute.
  std::vector<DeviceGroup> device_groups = {};
};

// Averages .grad over the ranks when it is told to: what the step mode is made of. It uses no hooks
// of autograd, so whatever the backwards before it did to .grad is what is averaged.
//
// Gradients lie in the same buckets as the Reducer's (bucket_buffers.h), which are kept from one
// reduction to the next and are reduced one while the next is being filled. Every call is
// collective, with parameters of the same number, shapes and types in the same order on all ranks;
// those that require no gradient or appear twice are passed over. When the list has changed, the
// ranks compare it first. A gradient that is undefined counts as zero, and where it is so on every
// rank it stays undefined. A sparse gradient is made dense, and the average of it is dense.
//
// In a group of one a communication hook is run, and nothing is done without one.
class GradientReducer {
 public:
  // `group` is one of host memory. Throws std::invalid_argument for a bucket_cap_mb below 0 or
  // above 1048576, or for device groups that do not fit.
  explicit GradientReducer(std::shared_ptr<ProcessGroup> group,
                           const GradientReducerOptions& options = {});
  // Waits for what is in flight.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // The name of a parameter of the list, for errors and hooks: "parameter 3" without it.
  using Naming = std::function<std::string(const at::Tensor& parameter, std::size_t index)>;
  void set_naming(Naming naming) { naming_ = std::move(naming); }

  // In place of averaging. Once, before the first reduction; std::logic_error otherwise.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  const std::shared_ptr<CommHook>& comm_hook() const { return hook_; }

  // Throws CollectiveError; std::invalid_argument, which leaves the group usable, if the parameters
  // differ between ranks; or std::invalid_argument for a gradient that cannot be reduced and what
  // the hook throws, after aborting the group.
  void reduce(const std::vector<at::Tensor>& parameters);

  // Of the last reduction. Empty before the first.
  const std::vector<GradBucket>& buckets() const { return buckets_; }

 private:
  struct Listed {
    at::Tensor tensor;
    bool requires_grad = false;
  };
  bool is_planned(const std::vector<at::Tensor>& parameters) const;
  void plan(const std::vector<at::Tensor>& parameters);
  void exchange();
  void fill(std::size_t bucket);
  void start(std::size_t bucket);
  void publish(std::size_t bucket);
  void drain();

  std::shared_ptr<ProcessGroup> group_;
  const GradientReducerOptions options_;
  Naming naming_;
  std::shared_ptr<CommHook> hook_;

  std::vector<Listed> listed_;  // What was planned for.
  std::vector<GradBucket> buckets_;
  std::vector<BucketRoute> routes_;             // By bucket.
  std::vector<std::vector<at::Tensor>> views_;  // By bucket: what .grad is, with views.
  std::vector<SharedText> tags_;                // By bucket.
  std::vector<std::size_t> first_flag_;         // By bucket: where its flags begin.
  std::vector<std::uint8_t> used_;  // 1: there is a gradient; after the exchange: anywhere.
  HookRunner runner_;
  WorkPtr flags_;
  std::vector<WorkPtr> works_;
};

}  // namespace ddp
