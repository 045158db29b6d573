#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}

// Batch normalization over the batches of all ranks together (Zhang et al., "Context Encoding for
// Semantic Segmentation", 2018; PyTorch's SyncBatchNorm), for models whose share of a batch is too
// small for statistics of its own.
namespace ddp {

// From here on every BatchNorm1d, 2d and 3d of the module, itself included, normalizes in training
// with the statistics of all ranks of the group, forward and backward, and so do its running
// statistics. Gives how many there are.
//
//   ddp::convert_sync_batchnorm(*net, group);   // then wrap it in DistributedDataParallel
//
// In PyTorch the layers are replaced by others. C++ members are of the layers' own type, so here
// they stay what they are, names and checkpoints included: it is the operation, torch::batch_norm,
// that looks whose running mean or weight it is given. The first conversion of a process puts that
// look into LibTorch's dispatcher (aten::batch_norm, CPU and CUDA); for all other layers the
// operation is LibTorch's own. Converting again gives the layers another group, a null group takes
// them back.
//
// Every training forward is collective then, one exchange of 2 * channels + 1 numbers for each
// layer, and every backward another. So all ranks run the same layers in the same order; a rank may
// have fewer samples, or none; but a batch that gives a rank one value per channel is refused by
// the layers themselves, before the operation ("Expected more than 1 value per channel"): for such,
// give the model ddp::SyncBatchNorm layers (worker/ddp/modules/sync_batch_norm_layer.h). Not in the
// scope of DistributedDataParallel::join, whose ranks without input do not run forward. Sums are in
// double precision and in rank order, so all ranks normalize with the same bits. Gradients of
// weight and bias are the rank's own, which DistributedDataParallel averages as any other.
//
// Throws std::invalid_argument, naming the layer, for one that has neither weight nor running
// statistics. Forward and backward throw CollectiveError. Any thread converts, one at a time.
std::size_t convert_sync_batchnorm(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group);

// The operation itself, for layers of one's own: as torch::batch_norm in training. Input is
// [N, C, ...]; weight, bias and running statistics have C elements and may be undefined.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, double momentum, double eps,
                           const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
