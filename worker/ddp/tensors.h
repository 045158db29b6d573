#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/collectives/types.h"
#include "worker/runtime/process_group.h"

// Between LibTorch's tensors and the bytes that collectives move. CPU tensors only.
namespace ddp {

// The element type that a reduction of this tensor uses. Throws std::invalid_argument, naming
// `what`, if collectives do not have it.
DType reduction_type(const at::Tensor& tensor, const std::string& what);

// All elements of a contiguous tensor. The tensor must outlive the use of the buffer.
Buffer buffer_of(const at::Tensor& tensor);

// "float32 [10, 5]", or "float32 [10, 5] strides [1, 10]" where the layout is not row-major.
std::string describe(const at::Tensor& tensor);

// Strides of a copy of the tensor without gaps: its own where it has none, row-major otherwise.
// Gradients have these (autograd's layout contract), so a copy into a bucket is one memcpy.
std::vector<std::int64_t> packed_strides(const at::Tensor& tensor);

// True if the tensor's elements fill one piece of memory, so that equal sizes and strides mean
// equal bytes.
bool is_packed(const at::Tensor& tensor);

// A tensor over a part of `flat` with the shape of `like` and packed strides, beginning at an
// element of flat. It shares the storage without being a view in autograd's sense, so the
// optimizers' zero_grad works on it.
at::Tensor slot_of(const at::Tensor& flat, std::int64_t first_element, const at::Tensor& like);

// Copies values; a memcpy where both have equal type, sizes and packed strides.
void copy_values(const at::Tensor& to, const at::Tensor& from);

// Waits until an operation, which may be null, no longer uses its buffer, and drops it, whatever
// became of it. For clearing up after an error whose cause is being thrown already.
void wait_quietly(WorkPtr& work);

// True if both are the same elements in memory.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace ddp
