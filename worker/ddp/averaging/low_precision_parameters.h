#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// Parameters that have another type while they are used. The tensors stay the same objects: the
// optimizer sees them with their own type and values, which only it changes. Used by one thread.
class LowPrecisionParameters {
 public:
  LowPrecisionParameters(const std::vector<at::Tensor>& parameters, at::ScalarType type);
  // Parameters and gradients have their own type afterwards, also behind a backward that failed:
  // the module may live on, in another wrapper.
  ~LowPrecisionParameters();
  LowPrecisionParameters(const LowPrecisionParameters&) = delete;
  LowPrecisionParameters& operator=(const LowPrecisionParameters&) = delete;

  // Gives them the low type and rounded values. Returns whether anything changed.
  bool lower();
  // Gives them their own type and values.
  void restore();

 private:
  struct Parameter {
    at::Tensor tensor;
    at::Tensor full;
    at::Tensor low;
  };
  std::vector<Parameter> parameters_;
  bool is_low_ = false;
};

// Converts floating-point buffers to that type, at once and permanently.
void convert_buffers(const std::vector<at::Tensor>& buffers, at::ScalarType type);

}  // namespace ddp
