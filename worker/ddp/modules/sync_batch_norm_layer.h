#pragma once

#include <memory>
#include <ostream>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "worker/runtime/process_group.h"

namespace ddp {

// torch.nn.SyncBatchNorm: a layer for inputs [N, C, ...] of any number of dimensions that
// normalizes, in training, with the statistics of all ranks of the group; see
// ddp::sync_batch_norm. In evaluation, and without a group, it is LibTorch's batch norm. Names and
// shapes of parameters and buffers are those of BatchNorm1d, 2d and 3d, so checkpoints go from one
// to the other.
//
// For your own models. Unlike a converted layer (convert_sync_batchnorm), it accepts one value per
// channel on a rank, such as a batch of one row, which LibTorch's layers refuse.
//
// Throws std::invalid_argument for an input of fewer than two dimensions, or of another number of
// channels.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                    std::shared_ptr<ProcessGroup> group);
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const at::Tensor& input) override;  // NormImplBase's name.
  double average_factor();

  std::shared_ptr<ProcessGroup> group_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace ddp
