#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/collectives/types.h"
#include "worker/runtime/process_group.h"

// Converts between LibTorch's tensors and the bytes that collectives move. CPU tensors only, unless
// said otherwise.
namespace ddp {

// "float32", and so on.
const char* type_name(at::ScalarType type);

// The type with which collectives move the tensor's elements (kU8 for bool). Throws
// std::invalid_argument, naming `what`, if they have none, or if the tensor is not dense or not on
// the CPU.
DType element_type(const at::Tensor& tensor, const std::string& what);

// The same for a tensor that is averaged: floating point only, on any device.
DType gradient_type(const at::Tensor& tensor, const std::string& what);

// All elements of a contiguous tensor. The tensor must outlive the use of the buffer.
Buffer buffer_of(const at::Tensor& tensor);
// The same for a group for the memory of the tensor's device.
Buffer device_buffer_of(const at::Tensor& tensor);

// A flat tensor of zeros in memory that the group's ranks reduce in place (ProcessGroup::allocate),
// or in ordinary memory if there is none left. It may outlive the group.
at::Tensor registered_zeros(ProcessGroup& group, std::int64_t elements, at::ScalarType type);

// The detached tensor in host memory with packed strides. The tensor itself if that is true
// already. Waits for the tensor's device.
at::Tensor on_host(const at::Tensor& tensor);

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
// One for each of `likes`, one after the other from the beginning of `flat`.
std::vector<at::Tensor> slots_of(const at::Tensor& flat, const std::vector<at::Tensor>& likes);

// Tells autograd that the values have been written to: it refuses to use a saved tensor whose
// values have changed since.
void mark_changed(const at::Tensor& tensor);

// Whether copying the values is one memcpy: both on the CPU, with equal type, sizes and packed
// strides.
bool is_one_copy(const at::Tensor& to, const at::Tensor& from);

// Copies values; a memcpy where both are on the CPU and have equal type, sizes and packed strides.
// Between devices it returns when that is done.
void copy_values(const at::Tensor& to, const at::Tensor& from);

// Sets a packed tensor to zero; on the CPU a memset.
void zero_values(const at::Tensor& tensor);

// Waits until an operation no longer uses its buffer, ignores its failure and drops it. It may be
// null. For cleaning up after an error that is already being thrown.
void wait_quietly(WorkPtr& work);

// A tensor over the memory of `slot`, for use as .grad. `kept` is the tensor that the last call
// returned, or undefined. It is returned again if nobody else holds it and it has not changed.
const at::Tensor& gradient_view(at::Tensor& kept, const at::Tensor& slot);

// True if both are the same elements in memory.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace ddp
