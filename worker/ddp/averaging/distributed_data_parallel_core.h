#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/bucket_names.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/device_group.h"
#include "worker/ddp/averaging/mixed_precision.h"
#include "worker/ddp/averaging/stats.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddp {

class CoalescedBroadcast;
class JoinCalls;
class LowPrecisionParameters;
class Reducer;
struct ModuleState;

// The names are PyTorch's. All options must be the same on all ranks; with init_sync a difference
// is an error.
struct DistributedDataParallelOptions {
  // A bucket is closed once it holds bucket_cap_mb MiB. The bucket that fills first may be smaller
  // (first_bucket_mb), never larger. A hook gets whole buckets. Without a hook a bucket is reduced
  // piece by piece as its gradients come (worker/buckets/pieces.h), so larger buckets cost no
  // overlap.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  // Replaces both: MiB of the first, second, ... bucket. The last entry holds for all further
  // buckets.
  std::vector<double> bucket_cap_mb_list;
  // Rank 0's buffers (batch norm's running statistics) replace those of all ranks at the start of a
  // forward in training mode that follows a reduced backward, and at the end of a Join.
  // Construction makes them equal in any case. If this is not set, broadcast_buffers decides.
  std::optional<bool> forward_sync_buffers = {};
  // The older name, as in PyTorch 2.x. If false, the ranks keep their own buffers at construction,
  // too.
  bool broadcast_buffers = true;
  // Allows parameters that get no gradient in a backward. Costs one small exchange per backward.
  bool find_unused_parameters = false;
  // With find_unused_parameters or static_graph: does not send a bucket if none of its parameters
  // was used. All ranks must use the same parameters then.
  bool skip_all_reduce_unused_params = false;
  // .grad is a view of the reduced bucket. Saves a copy and the memory of one set of gradients.
  bool gradient_as_bucket_view = false;
  // Copies the gradients of a bucket (or of a piece that is reduced alone) together when the last
  // one has come, not each as it comes. Gradients made with create_graph are always copied one by
  // one. It pays for many small gradients on a device. On the CPU, copying each while it is in the
  // cache is best.
  bool batched_grad_copy = false;
  // Every iteration does what the first one did: see Reducer.
  bool static_graph = false;
  // Verifies and broadcasts the model at construction. If false, the caller must make the models
  // equal.
  bool init_sync = true;
  // Names of parameters and buffers that are neither verified nor broadcast nor reduced.
  std::vector<std::string> parameters_to_ignore;
  // The gradients of these parameters are reduced together, right after the bucket of
  // param_to_hook_all_reduce; choose a parameter whose gradient comes after theirs. Set both or
  // neither.
  std::vector<std::string> delay_all_reduce_named_params;
  std::string param_to_hook_all_reduce;
  MixedPrecision mixed_precision;
  // Rebuilds the buckets after the first backward, in the order in which gradients came.
  bool rebuild_buckets = true;
  // The bucket_layout() of an earlier process: the buckets from the first step on. For exact resume
  // with hooks that compress whole buckets.
  BucketNames bucket_layout;
  // How gradients of devices other than the CPU travel: groups of the same ranks for the memory of
  // these devices (NcclGroup), beside the process group for host memory. Gradients on a device
  // without a group, and those that a communication hook takes, go through host memory.
  std::vector<DeviceGroup> device_groups = {};
  // PyTorch's other arguments have no counterpart. device_ids, output_device and dim: the module
  // and its inputs stay on the devices where they are. device_mesh: use ProcessGroup::split to make
  // a group for a dimension of a mesh. check_reduction: it does nothing in PyTorch, either.

  bool syncs_buffers() const { return forward_sync_buffers.value_or(broadcast_buffers); }
  bool syncs_first_buffers() const { return forward_sync_buffers || broadcast_buffers; }
};

// The part of DistributedDataParallel that does not depend on the module's type; see there.
class DistributedDataParallelCore {
 public:
  DistributedDataParallelCore(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelCore();
  DistributedDataParallelCore(const DistributedDataParallelCore&) = delete;
  DistributedDataParallelCore& operator=(const DistributedDataParallelCore&) = delete;

  // Made before the module's forward. done() is called after it; where it is not, forward has
  // thrown.
  class Forward {
   public:
    Forward(DistributedDataParallelCore& core, bool is_training);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;
    void done();

   private:
    DistributedDataParallelCore& core_;
    bool is_done_ = false;
    bool lowered_ = false;  // Parameters were not low before, so no backward is pending.
  };
  // Whether the caller must call watch_outputs() after forward.
  bool wants_outputs() const;
  void watch_outputs(const std::vector<at::Tensor>& outputs);
  // Whether a backward may leave parameters without a gradient on all ranks.
  bool allows_unused_parameters() const {
    return options_.find_unused_parameters || options_.static_graph;
  }
  // The type to which forward converts its inputs, if any.
  std::optional<at::ScalarType> input_type() const { return options_.mixed_precision.param_dtype; }

  bool will_sync_buffers(bool is_training) const;
  void broadcast_buffers();
  DdpStats stats() const;
  void set_sample_rate(int iterations);
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void zero_grad(bool set_to_none);
  BucketNames bucket_layout() const;

  // For Join. Throws std::logic_error if the model cannot be joined.
  void check_join() const;
  // `model`: which one of several this is.
  void begin_join(std::shared_ptr<JoinCalls> calls, int model);
  void end_join();
  // Takes part in the call that the ranks with input have announced.
  void shadow_call();
  void broadcast_last_model(bool is_last);
  bool is_joining() const;

  // An optimizer whose steps are collective.
  struct ShardedStep {
    std::function<void()> wait;    // Waits for the parameters, before they are read.
    std::function<void()> shadow;  // The step of a rank that has no input left.
  };
  void set_sharded_step(ShardedStep step) { sharded_step_ = std::move(step); }
  // Call it before such a step: in the scope of a Join, tells the ranks without input about it.
  void announce_step();

  Reducer& reducer() { return *reducer_; }
  const Reducer& reducer() const { return *reducer_; }
  ProcessGroup& group() { return *group_; }
  const std::shared_ptr<ProcessGroup>& group_ptr() const { return group_; }

 private:
  // Returns whether parameters were lowered for it.
  bool before_forward(bool is_training);
  void after_forward(bool lowered);
  std::vector<at::Tensor> parameters_and(bool buffers) const;
  void announce_forward(bool with_buffers);

  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallelOptions options_;
  std::string module_name_;
  std::unique_ptr<const ModuleState> state_;
  std::unique_ptr<LowPrecisionParameters> low_;
  std::unique_ptr<CoalescedBroadcast> buffers_;
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<JoinCalls> join_;  // Set in the scope of a Join.
  int join_model_ = 0;
  ShardedStep sharded_step_;
  std::vector<std::size_t> first_bucket_sizes_;
  std::uint64_t buffers_as_of_ = 0;  // The reducer's passes when buffers were last equal.
};

}  // namespace ddp
