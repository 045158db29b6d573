#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// Scales the gradients so that their norm, taken as if they were one vector, is at most max_norm,
// and gives the norm that they had. PyTorch's torch.nn.utils.clip_grad_norm_, with one difference:
// the norm is summed up in double precision and in an order that depends on the gradients' sizes
// alone. So ranks with equal gradients get equal bits, whatever processors, instruction sets and
// numbers of threads they have, and none drifts away from the others.
//
// To be called on averaged gradients: after backward through a DistributedDataParallel module; in
// the step mode DistributedOptimizer::clip_grad_norm_ averages first. Local. Undefined gradients
// are passed over. norm_type is 1, 2 or infinity, since other powers differ by machine;
// std::invalid_argument otherwise, or for a max_norm that is no number. With error_if_nonfinite, a
// norm that is infinite or no number is a std::runtime_error and the gradients stay as they are;
// without it they become what the arithmetic makes of them.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type = 2.0, bool error_if_nonfinite = false);

// Its parts, for gradients that are divided among ranks.

// Throws what clip_grad_norm_ does for these.
void check_clipping(double max_norm, double norm_type);

// What a norm is the root of: a sum, or with infinity a maximum.
class NormSum {
 public:
  explicit NormSum(double norm_type) : norm_type_(norm_type) {}
  void add(const at::Tensor& gradient);
  double value() const { return value_; }
  // Of a value() of more than what was added here.
  double norm_of(double value) const;

 private:
  double norm_type_;
  double value_ = 0;
};

// Scales the gradients, which have this norm, so that it is at most max_norm. Gives `norm`.
double scale_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm,
                     bool error_if_nonfinite);

}  // namespace ddp
