#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/tensor_work.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// One call of an operation on tensors: checks them, finds or makes contiguous memory for them, and
// wraps what the group returns.
//
// Every tensor is named in errors: std::invalid_argument "OPERATION: ARGUMENT ...".
class TensorCall {
 public:
  TensorCall(const char* operation, bool async_op) : operation_(operation), async_op_(async_op) {}

  // Memory with the tensor's values / that becomes the tensor's values / both.
  Buffer input(const at::Tensor& tensor, const char* argument);
  Buffer output(const at::Tensor& tensor, const char* argument);
  Buffer in_out(const at::Tensor& tensor, const char* argument);
  // The same for the elements of all tensors, one tensor after another. The list must not be empty.
  Buffer inputs(const std::vector<at::Tensor>& list, const char* argument);
  Buffer outputs(const std::vector<at::Tensor>& list, const char* argument);
  // Stands for an argument that this rank does not pass; it has the type of the others.
  Buffer nothing() const { return {nullptr, 0, type_}; }

  OpOptions options() const;
  // Returns the Work for the caller; without async_op it is done. Call it once.
  WorkPtr finish(WorkPtr work);

  void require(bool condition, const std::string& problem) const;
  void require_length(const std::vector<at::Tensor>& list, const char* argument,
                      const ProcessGroup& group) const;
  // Every tensor of the list has like's sizes.
  void require_sizes(const std::vector<at::Tensor>& list, const char* argument,
                     const at::Tensor& like, const char* like_argument) const;

 private:
  void check(const at::Tensor& tensor, const std::string& argument);
  void check_output(const at::Tensor& tensor, const std::string& argument);
  void check_list(const std::vector<at::Tensor>& list, const char* argument, bool output);
  Buffer use(const at::Tensor& tensor);

  const char* operation_;
  bool async_op_;
  bool typed_ = false;
  at::ScalarType scalar_type_ = at::ScalarType::Undefined;  // Of all tensors.
  DType type_ = DType::kU8;
  std::vector<at::Tensor> used_;
  std::vector<Landing> landings_;
};

}  // namespace ddp
