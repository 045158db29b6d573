#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/averaging/join_calls.h"
#include "worker/ddp/averaging/mixed_precision.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/averaging/stats.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/trace.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// PyTorch's names. All are the same on all ranks; with init_sync a difference is an error.
struct DistributedDataParallelOptions {
  // A bucket is closed once it holds this many MiB; a hook is given whole buckets. Without a hook a
  // bucket is reduced piece by piece as its gradients come (worker/buckets/pieces.h), so larger
  // buckets cost no overlap. The first to fill may be smaller; it is never larger than the others.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  // In place of the two: MiB of the first, second, ... bucket; the last is that of all further
  // ones.
  std::vector<double> bucket_cap_mb_list;
  // Rank 0's buffers (batch norm's running statistics) replace those of all ranks at the start of a
  // forward in training mode that follows a reduced backward, and at the end of a Join.
  // Construction makes them equal in any case. If it is not set, broadcast_buffers counts.
  std::optional<bool> forward_sync_buffers = {};
  // The older name, as PyTorch 2.x takes it: false also leaves the ranks their own buffers at
  // construction.
  bool broadcast_buffers = true;
  // Allow parameters that got no gradient in a backward. Costs one small exchange in each.
  bool find_unused_parameters = false;
  // With find_unused_parameters or static_graph: buckets of which no parameter was used are not
  // sent. All ranks must use the same parameters then.
  bool skip_all_reduce_unused_params = false;
  // .grad is the reduced bucket itself: saves a copy and the memory of one set of gradients.
  bool gradient_as_bucket_view = false;
  // Gradients are copied into their bucket, or the piece of it that is reduced at once, together
  // when the last one has come, and not each when it comes, as those made with create_graph always
  // are. With many small gradients on a device that pays; on the CPU they are best copied while
  // they are in its cache.
  bool batched_grad_copy = false;
  // Every iteration does what the first one did: see Reducer.
  bool static_graph = false;
  // Verify and broadcast at construction. Without it the caller answers for equal models.
  bool init_sync = true;
  // Names of parameters and buffers that are neither verified nor broadcast nor reduced.
  std::vector<std::string> parameters_to_ignore;
  // These parameters' gradients are reduced together, next after the bucket that has the gradient
  // of param_to_hook_all_reduce: best one whose gradient comes after theirs. Both or none.
  std::vector<std::string> delay_all_reduce_named_params;
  std::string param_to_hook_all_reduce;
  MixedPrecision mixed_precision;
  // Make the buckets anew after the first backward, in the order in which gradients came.
  bool rebuild_buckets = true;
  // What bucket_layout() of an earlier process gave: buckets are those from the first step on. For
  // resuming exactly with hooks that compress whole buckets.
  BucketNames bucket_layout;
  // For parameters on other devices than the CPU: groups of the same ranks for the memory of these
  // devices (NcclGroup), beside the process group, which is one of host memory. Gradients on a
  // device that has none, and those that a communication hook takes, go through host memory.
  std::vector<DeviceGroup> device_groups = {};
  // Of PyTorch's other arguments, device_ids, output_device and dim have no counterpart: the module
  // lies where it lies, on as many devices as it likes, and so does its input. Nor has device_mesh:
  // a dimension of a mesh is a group that ProcessGroup::split gives. check_reduction does nothing
  // there, either.

  bool syncs_buffers() const { return forward_sync_buffers.value_or(broadcast_buffers); }
  bool syncs_first_buffers() const { return forward_sync_buffers || broadcast_buffers; }
};

// What DistributedDataParallel does whatever the module's type; see there.
class DistributedDataParallelCore {
 public:
  DistributedDataParallelCore(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                              const DistributedDataParallelOptions& options);

  // Around the module's forward.
  void before_forward(bool is_training);
  void after_forward();
  // Whether watch_outputs has to follow.
  bool wants_outputs() const;
  // The type to which forward converts its inputs, if any.
  std::optional<at::ScalarType> input_type() const { return options_.mixed_precision.param_dtype; }
  // The type of .grad after backward, where it is not the parameter's.
  std::optional<at::ScalarType> gradient_type() const {
    return options_.mixed_precision.type_of_gradients();
  }

  bool will_sync_buffers(bool is_training) const;
  void broadcast_buffers();
  DdpStats stats() const;
  void set_trace(std::shared_ptr<Trace> trace) { reducer_->timer().set_trace(std::move(trace)); }

  // For Join. std::logic_error where the model cannot be joined.
  void check_join() const;
  // `model`: which one of several this is.
  void begin_join(std::shared_ptr<JoinCalls> calls, int model);
  void end_join();
  void shadow(JoinCalls::Call call);
  void broadcast_last_model(bool is_last);
  bool is_joining() const { return join_ != nullptr && !join_->is_over(); }

  // An optimizer whose steps are collective.
  struct ShardedStep {
    std::function<void()> wait;    // For the parameters, before they are read.
    std::function<void()> shadow;  // A step of a rank that has no input.
  };
  void set_sharded_step(ShardedStep step) { sharded_step_ = std::move(step); }
  // Before such a step: where ranks may run out of input, tells those that have.
  void announce_step();

  Reducer& reducer() { return *reducer_; }
  const Reducer& reducer() const { return *reducer_; }
  ProcessGroup& group() { return *group_; }
  const std::shared_ptr<ProcessGroup>& group_ptr() const { return group_; }

 private:
  std::vector<at::Tensor> parameters_and(bool buffers) const;
  void announce_forward(bool with_buffers);
  void announce(JoinCalls::Call call) { join_->announce(call, join_model_); }

  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallelOptions options_;
  std::string module_name_;
  ModuleState state_;
  std::unique_ptr<LowPrecisionParameters> low_;
  std::unique_ptr<CoalescedBroadcast> buffers_;
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<JoinCalls> join_;  // In the scope of a Join.
  int join_model_ = 0;
  ShardedStep sharded_step_;
  std::vector<std::size_t> first_bucket_sizes_;
  std::uint64_t buffers_as_of_ = 0;  // The reducer's passes when buffers were last equal.
};

}  // namespace ddp
