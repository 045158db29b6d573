#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

// Tensors as the pieces of memory that an operation can use as they are. Without code of its own,
// so that the Python module does not link the rest of this folder.
namespace ddp {

// Its memory is its values in row-major order.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

// A new tensor with the values, apart from autograd.
inline at::Tensor plain_copy(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy =
      at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
  copy.copy_(tensor.detach());
  return copy;
}

// Where the elements of all tensors begin if they lie in memory one tensor behind the other, else
// null. An empty tensor has no address.
inline void* adjacent_begin(const std::vector<at::Tensor>& list) {
  char* begin = nullptr;
  const char* next = nullptr;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : list) {
    if (tensor.numel() == 0) continue;
    if (!is_plain(tensor)) return nullptr;
    auto* const data = static_cast<char*>(tensor.data_ptr());
    if (first == nullptr) {
      first = &tensor;
      begin = data;
    } else if (data != next || !tensor.storage().is_alias_of(first->storage())) {
      return nullptr;
    }
    next = data + tensor.nbytes();
  }
  return begin;
}

inline std::int64_t elements_of(const std::vector<at::Tensor>& list) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : list) elements += tensor.numel();
  return elements;
}

}  // namespace ddp
