#pragma once

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

// The parts of clip_grad_norm_, for gradients that are divided among ranks.

// Throws as clip_grad_norm_ does for these arguments.
void check_clipping(double max_norm, double norm_type);

// What a norm is the root of: a sum; for the infinity norm, a maximum.
class NormSum {
 public:
  explicit NormSum(double norm_type) : norm_type_(norm_type) {}
  void add(const at::Tensor& gradient);
  double value() const { return value_; }
  // The norm for `value`, a value() that may include the parts of other ranks.
  double norm_of(double value) const;

 private:
  double norm_type_;
  double value_ = 0;
};

// Scales the gradients, whose norm is `norm`, so that it is at most max_norm. Returns `norm`.
double scale_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm,
                     bool error_if_nonfinite);

}  // namespace ddp
