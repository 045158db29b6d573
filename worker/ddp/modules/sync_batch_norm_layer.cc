#include "worker/ddp/modules/sync_batch_norm_layer.h"

#include <ostream>
#include <stdexcept>
#include <utility>

#include <ATen/ops/batch_norm.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/modules/sync_batch_norm.h"

namespace ddp {

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& chosen,
                                     std::shared_ptr<ProcessGroup> group)
    : NormImplBase(chosen), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw std::invalid_argument(fmt::format(
      "SyncBatchNorm: the input is [{}], expected [N, {}, ...]",
      fmt::join(input.sizes().begin(), input.sizes().end(), ", "), options.num_features()));
}

// Counts a training forward; without a momentum all of them weigh the same.
double SyncBatchNormImpl::average_factor() {
  if (num_batches_tracked.defined()) num_batches_tracked.add_(1);
  if (options.momentum()) return *options.momentum();
  return num_batches_tracked.defined() ? 1.0 / num_batches_tracked.item<double>() : 0.0;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const double factor = is_training() ? average_factor() : 0.0;
  if (is_training() && group_) {
    return sync_batch_norm(input, weight, bias, running_mean, running_var, factor, options.eps(),
                           group_);
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !options.track_running_stats(), factor, options.eps(),
                        /*cudnn_enabled=*/true);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("ddp::SyncBatchNorm({}, eps={}, affine={}, track_running_stats={})",
                        options.num_features(), options.eps(), options.affine(),
                        options.track_running_stats());
}

}  // namespace ddp
