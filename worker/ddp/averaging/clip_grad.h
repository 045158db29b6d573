#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// Scales the gradients so that their norm, taken as if they were one vector, is at most max_norm,
// and returns the norm that they had. PyTorch's torch.nn.utils.clip_grad_norm_, with one
// difference: the norm is summed in double precision and in an order that depends on the gradients'
// sizes alone. So ranks with equal gradients get equal bits, whatever their processors, instruction
// sets and numbers of threads, and their replicas do not drift apart.
//
// Call it on averaged gradients: after backward through a DistributedDataParallel module.
// (DistributedOptimizer::clip_grad_norm_ averages first.) Local. Skips undefined gradients.
// norm_type is 1, 2 or infinity, because other powers differ by machine. Throws
// std::invalid_argument for another norm_type or a NaN max_norm. With error_if_nonfinite, an
// infinite or NaN norm throws std::runtime_error and leaves the gradients unchanged; without it the
// gradients are scaled all the same.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type = 2.0, bool error_if_nonfinite = false);

// The same for gradients that are divided among ranks. `join` is given what the norm of `counted`
// is the root of (a sum; for the infinity norm, a maximum) and returns that of all ranks;
// `gradients` are scaled.
double clip_gradients(const std::vector<at::Tensor>& gradients,
                      const std::vector<at::Tensor>& counted,
                      const std::function<double(double)>& join, double max_norm, double norm_type,
                      bool error_if_nonfinite);

}  // namespace ddp
