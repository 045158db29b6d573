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
// with the statistics of all ranks of the group, in forward and backward. Its running statistics
// are those of all ranks, too. Returns the number of layers.
//
//   ddp::convert_sync_batchnorm(*net, group);   // then wrap it in DistributedDataParallel
//
// PyTorch replaces the layers by others. In C++ members have the layers' own type, so here the
// layers stay what they are, and names and checkpoints do not change. Instead the operation,
// torch::batch_norm, recognizes a converted layer by its running mean or weight. The first
// conversion of a process installs that check in LibTorch's dispatcher (aten::batch_norm, CPU and
// CUDA); for all other layers the operation is LibTorch's own. Converting again gives the layers
// another group. A null group converts them back.
//
// Every training forward is then collective, with one exchange of 2 * channels + 1 numbers for each
// layer, and so is every backward. All ranks must run the same layers in the same order. A rank may
// have fewer samples, or none. But LibTorch's layers refuse a batch with one value per channel on a
// rank ("Expected more than 1 value per channel"); for such batches use ddp::SyncBatchNorm layers
// (worker/ddp/modules/sync_batch_norm_layer.h). Cannot be used in the scope of
// DistributedDataParallel::join, because ranks without input do not run forward. Sums are in double
// precision and in rank order, so all ranks normalize with the same bits. Gradients of weight and
// bias are the rank's own, which DistributedDataParallel averages as any other.
//
// Throws std::invalid_argument, naming the layer, for one that has neither weight nor running
// statistics. Forward and backward throw CollectiveError. Any thread converts, one at a time.
std::size_t convert_sync_batchnorm(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group);

// The operation itself, for your own layers: torch::batch_norm in training. Input is [N, C, ...];
// weight, bias and running statistics have C elements and may be undefined.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, double momentum, double eps,
                           const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
