#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "worker/collectives/types.h"

namespace ddp::python {

// Where a result has to be copied when the operation is done.
struct Landing {
  at::Tensor to;
  at::Tensor from;
};

// The memory of one call: turns tensors into buffers, through contiguous copies where a tensor is
// not contiguous. Keeps all of it alive.
//
// Elements of a type that no reduction knows travel as bytes, and complex ones as two reals, so a
// buffer may have more elements than the tensor; count_of() counts those.
//
// Every fault is reported as PyTorch does: TORCH_CHECK for values, TORCH_CHECK_TYPE for types. The
// text begins with the operation's name.
class Operands {
 public:
  explicit Operands(const char* operation) : operation_(operation) {}

  // Memory with the tensor's values / that becomes the tensor's values / both.
  Buffer input(const at::Tensor& tensor);
  Buffer output(const at::Tensor& tensor);
  Buffer in_out(const at::Tensor& tensor);
  // As in_out(), after it has got the values of another tensor of as many elements.
  Buffer in_out_with(const at::Tensor& tensor, const at::Tensor& values);
  // Input and output for the elements of all tensors, one tensor after another.
  Buffer inputs(const std::vector<at::Tensor>& list);
  Buffer outputs(const std::vector<at::Tensor>& list);
  // Stands for an argument that this rank does not pass.
  Buffer nothing() const { return {nullptr, 0, type_}; }

  // The tensors' elements can be reduced in this way: call it before anything else. `ranks` of them
  // take part.
  void reduces(const at::Tensor& tensor, const c10d::ReduceOp& op, int ranks);
  // Where the tensors are; the CPU if there are none.
  c10::Device device() const { return device_; }
  // What reduces() has chosen.
  ReduceOp reduction() const { return reduction_; }

  std::size_t count_of(const at::Tensor& tensor) const {
    return static_cast<std::size_t>(tensor.numel()) * scale_;
  }
  std::size_t scale() const { return scale_; }
  const std::vector<at::Tensor>& used() const { return used_; }
  // Completes the results and copies them to where they belong. Call it once, when the operation is
  // done.
  void land() const;

  void require(bool condition, const std::string& problem) const;
  void require_one(const std::vector<at::Tensor>& list) const;
  void require_length(std::size_t length, int ranks, const char* what) const;

 private:
  void check(const at::Tensor& tensor);
  void check_output(const at::Tensor& tensor);
  // New memory for elements of the tensors' type, where the tensors are.
  at::Tensor empty(at::IntArrayRef sizes) const;
  Buffer use(const at::Tensor& tensor);
  Buffer result(const at::Tensor& tensor);
  Buffer whole(void* begin, const std::vector<at::Tensor>& list);

  const char* operation_;
  bool typed_ = false;
  at::ScalarType scalar_type_ = at::ScalarType::Undefined;  // Of all tensors.
  c10::Device device_ = at::kCPU;                           // Of all tensors.
  DType type_ = DType::kU8;
  std::size_t scale_ = 1;  // Buffer elements for an element of a tensor.
  ReduceOp reduction_;
  int divisor_ = 1;  // Of the results: what an average of integers lacks after their sum.
  std::vector<at::Tensor> results_;  // Those that land() divides.
  std::vector<at::Tensor> used_;
  std::vector<Landing> landings_;
};

}  // namespace ddp::python
