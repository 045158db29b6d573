#include "worker/ddp/data_parallel_core.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "worker/ddp/tensors.h"
#include "worker/ddp/verify.h"

namespace ddp {
namespace {

std::size_t bytes_of(const char* option, double mebibytes) {
  if (!(mebibytes > 0 && mebibytes <= 1024.0 * 1024.0)) {
    throw std::invalid_argument(
        fmt::format("{} is {}; it must be above 0 and at most 1048576 MiB", option, mebibytes));
  }
  return static_cast<std::size_t>(std::ceil(mebibytes * 1024 * 1024));
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> result;
  for (const NamedTensor& item : named) result.push_back(item.tensor);
  return result;
}

}  // namespace

DataParallelCore::DataParallelCore(const torch::nn::Module& module,
                                   std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      broadcast_buffers_(options.broadcast_buffers),
      buffers_(tensors_of(state_of(module).buffers)) {
  ReducerOptions reducer_options;
  reducer_options.limits.other_bytes = bytes_of("bucket_cap_mb", options.bucket_cap_mb);
  reducer_options.limits.first_bytes = std::min(
      bytes_of("first_bucket_mb", options.first_bucket_mb), reducer_options.limits.other_bytes);
  reducer_options.find_unused_parameters = options.find_unused_parameters;
  reducer_options.gradient_as_bucket_view = options.gradient_as_bucket_view;

  const ModuleState state = state_of(module);
  if (options.init_sync) verify_same_model(state, *group_);
  // After verification, so that all ranks refuse together and none waits for the others.
  const std::vector<NamedTensor> trainable = state.trainable();
  if (trainable.empty()) {
    throw std::invalid_argument(
        "the module has no parameter that requires a gradient; it needs no "
        "DistributedDataParallel");
  }
  reducer_ = std::make_unique<Reducer>(trainable, group_, reducer_options);
  if (options.init_sync) {
    CoalescedBroadcast(state.tensors()).run(*group_, 0, "parameters and buffers");
  }
}

void DataParallelCore::before_forward(bool is_training) {
  if (!is_training || !broadcast_buffers_) return;
  if (reducer_->synced_passes() != buffers_as_of_) broadcast_buffers();
}

void DataParallelCore::broadcast_buffers() {
  buffers_as_of_ = reducer_->synced_passes();
  buffers_.run(*group_, 0, "buffers");
}

}  // namespace ddp
