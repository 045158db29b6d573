#include "worker/ddp/averaging/stats.h"

namespace ddp {

nlohmann::json to_json(const DdpStats& stats) {
  nlohmann::json json;
#define DDP_FIELD(name) json[#name] = stats.name
  DDP_FIELD(forward_compute_time);
  DDP_FIELD(backward_compute_time);
  DDP_FIELD(backward_comm_time);
  DDP_FIELD(backward_compute_comm_overlap_time);
  DDP_FIELD(avg_forward_compute_time);
  DDP_FIELD(avg_backward_compute_time);
  DDP_FIELD(avg_backward_comm_time);
  DDP_FIELD(avg_backward_compute_comm_overlap_time);
  DDP_FIELD(iteration);
  DDP_FIELD(num_iterations);
  DDP_FIELD(sampled_iterations);
  DDP_FIELD(bucket_sizes);
  DDP_FIELD(rebuilt_bucket_sizes);
  DDP_FIELD(rebuilt_per_bucket_param_indices);
  DDP_FIELD(prev_iteration_grad_ready_order_indices);
  DDP_FIELD(has_rebuilt_buckets);
  DDP_FIELD(num_parameter_tensors);
  DDP_FIELD(total_parameter_size_bytes);
  DDP_FIELD(dtypes);
  DDP_FIELD(unused_parameter_size);
  DDP_FIELD(unused_parameters);
  DDP_FIELD(bucket_cap_bytes);
  DDP_FIELD(world_size);
  DDP_FIELD(rank);
  DDP_FIELD(module_name);
  DDP_FIELD(backend_name);
  DDP_FIELD(comm_hook);
  DDP_FIELD(has_sync_bn);
  DDP_FIELD(can_set_static_graph);
  DDP_FIELD(join_uneven_inputs);
  DDP_FIELD(find_unused_parameters);
  DDP_FIELD(gradient_as_bucket_view);
  DDP_FIELD(static_graph);
  DDP_FIELD(broadcast_buffers);
  DDP_FIELD(environment);
#undef DDP_FIELD
  return json;
}

}  // namespace ddp
