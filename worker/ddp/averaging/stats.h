#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddp {

// What DistributedDataParallel knows of itself, with the names of PyTorch's DDPLoggingData. Times
// are in nanoseconds, of this rank, from sampled iterations: the first ten, then one in a hundred
// (set_runtime_logging_sample_rate). Sizes are in bytes. Before the first iteration times are 0.
struct DdpStats {
  // Of the last sampled iteration, and their means.
  std::int64_t forward_compute_time = 0;
  std::int64_t backward_compute_time = 0;               // From the loss to the last gradient.
  std::int64_t backward_comm_time = 0;                  // First bucket's launch to the last's end.
  std::int64_t backward_compute_comm_overlap_time = 0;  // What both have in common.
  std::int64_t avg_forward_compute_time = 0;
  std::int64_t avg_backward_compute_time = 0;
  std::int64_t avg_backward_comm_time = 0;
  std::int64_t avg_backward_compute_comm_overlap_time = 0;
  std::uint64_t iteration = 0;       // Forwards so far, with gradients.
  std::uint64_t num_iterations = 0;  // Backwards that have reduced.
  std::uint64_t sampled_iterations = 0;

  std::vector<std::size_t> bucket_sizes;          // Of the first backward.
  std::vector<std::size_t> rebuilt_bucket_sizes;  // Of later ones, once has_rebuilt_buckets.
  std::vector<std::vector<std::size_t>> rebuilt_per_bucket_param_indices;
  std::vector<std::size_t> prev_iteration_grad_ready_order_indices;  // Of the first backward.
  bool has_rebuilt_buckets = false;

  std::size_t num_parameter_tensors = 0;
  std::size_t total_parameter_size_bytes = 0;
  std::vector<std::string> dtypes;
  std::size_t unused_parameter_size = 0;  // Of the last backward, on this rank.
  std::vector<std::string> unused_parameters;
  std::size_t bucket_cap_bytes = 0;

  int world_size = 1;
  int rank = 0;
  std::string module_name;
  std::string backend_name;
  std::string comm_hook;  // Its name; empty without one.
  bool has_sync_bn = false;
  bool can_set_static_graph = false;  // The backwards so far would have been the same with it.
  bool join_uneven_inputs = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  std::map<std::string, std::string> environment;  // MASTER_ADDR and so on, as far as set.
};

}  // namespace ddp
