#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

constexpr const char* kEnvironment[] = {"MASTER_ADDR",        "MASTER_PORT", "RANK",
                                        "WORLD_SIZE",         "LOCAL_RANK",  "LOCAL_WORLD_SIZE",
                                        "GROUP_RANK",         "DDP_ALGO",    "DDP_LINK",
                                        "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",  "OMP_NUM_THREADS"};

void add_times(const PassTimer& timer, DdpStats& stats) {
  const PassTimes& last = timer.last();
  const PassTimes average = timer.average();
  stats.forward_compute_time = last.forward_compute;
  stats.backward_compute_time = last.backward_compute;
  stats.backward_comm_time = last.backward_comm;
  stats.backward_compute_comm_overlap_time = last.backward_comm_overlap;
  stats.avg_forward_compute_time = average.forward_compute;
  stats.avg_backward_compute_time = average.backward_compute;
  stats.avg_backward_comm_time = average.backward_comm;
  stats.avg_backward_compute_comm_overlap_time = average.backward_comm_overlap;
  stats.iteration = timer.iterations();
  stats.sampled_iterations = timer.sampled();
}

}  // namespace

DdpStats DistributedDataParallelCore::stats() const {
  DdpStats stats;
  add_times(reducer_->timer(), stats);
  stats.num_iterations = reducer_->synced_passes();
  stats.bucket_sizes = first_bucket_sizes_;
  stats.has_rebuilt_buckets = reducer_->has_rebuilt_buckets();
  if (stats.has_rebuilt_buckets) {
    for (const buckets::BucketLayout& bucket : reducer_->buckets()) {
      stats.rebuilt_bucket_sizes.push_back(bucket.bytes);
      stats.rebuilt_per_bucket_param_indices.emplace_back();
      for (const buckets::BucketSlot& slot : bucket.slots) {
        stats.rebuilt_per_bucket_param_indices.back().push_back(slot.parameter);
      }
    }
  }
  stats.prev_iteration_grad_ready_order_indices = reducer_->ready_order();
  stats.unused_parameters = reducer_->unused_parameters();
  std::set<std::string> types;
  for (const NamedTensor& parameter : state_->trainable()) {
    ++stats.num_parameter_tensors;
    stats.total_parameter_size_bytes += parameter.tensor.nbytes();
    types.insert(type_name(parameter.tensor.scalar_type()));
    if (std::count(stats.unused_parameters.begin(), stats.unused_parameters.end(),
                   parameter.name) != 0) {
      stats.unused_parameter_size += parameter.tensor.nbytes();
    }
  }
  stats.dtypes.assign(types.begin(), types.end());
  stats.bucket_cap_bytes = static_cast<std::size_t>(options_.bucket_cap_mb * 1024 * 1024);
  stats.world_size = group_->size();
  stats.rank = group_->rank();
  stats.module_name = module_name_;
  stats.backend_name = "ddp-run";
  if (const CommHook* const hook = reducer_->comm_hook()) stats.comm_hook = hook->name();
  stats.can_set_static_graph = reducer_->uses_same_parameters();
  stats.join_uneven_inputs = join_ != nullptr;
  stats.find_unused_parameters = options_.find_unused_parameters;
  stats.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  stats.static_graph = options_.static_graph;
  stats.broadcast_buffers = options_.syncs_buffers();
  for (const char* const name : kEnvironment) {
    if (const char* const value = std::getenv(name)) stats.environment[name] = value;
  }
  return stats;
}

}  // namespace ddp
