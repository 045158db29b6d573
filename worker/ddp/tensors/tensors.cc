#include "worker/ddp/tensors/tensors.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"

namespace ddp {

const char* type_name(at::ScalarType type) {
  constexpr std::pair<at::ScalarType, const char*> kNames[] = {{at::kByte, "uint8"},
                                                               {at::kChar, "int8"},
                                                               {at::kShort, "int16"},
                                                               {at::kInt, "int32"},
                                                               {at::kLong, "int64"},
                                                               {at::kHalf, "float16"},
                                                               {at::kBFloat16, "bfloat16"},
                                                               {at::kFloat, "float32"},
                                                               {at::kDouble, "float64"},
                                                               {at::kComplexFloat, "complex64"},
                                                               {at::kComplexDouble, "complex128"},
                                                               {at::kBool, "bool"}};
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  return at::toString(type);
}

namespace {

// On any device.
DType type_of_elements(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) throw std::invalid_argument(fmt::format("{} is undefined", what));
  if (tensor.layout() != at::kStrided) {
    throw std::invalid_argument(fmt::format("{} is not dense; convert it with to_dense()", what));
  }
  switch (tensor.scalar_type()) {
    case at::kByte:
    case at::kBool:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kInt:
      return DType::kI32;
    case at::kLong:
      return DType::kI64;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    default:
      throw std::invalid_argument(
          fmt::format("{} is {}; collectives have uint8, int8, int32, int64, float16, bfloat16, "
                      "float32, float64 and bool",
                      what, type_name(tensor.scalar_type())));
  }
}

}  // namespace

DType element_type(const at::Tensor& tensor, const std::string& what) {
  if (tensor.defined() && !tensor.device().is_cpu()) {
    throw std::invalid_argument(fmt::format(
        "{} is on {}; a group of host memory takes CPU tensors only (for memory of CUDA devices "
        "use NCCL's group, worker/nccl)",
        what, tensor.device().str()));
  }
  return type_of_elements(tensor, what);
}

DType gradient_type(const at::Tensor& tensor, const std::string& what) {
  const DType type = type_of_elements(tensor, what);
  if (is_floating(type)) return type;
  throw std::invalid_argument(
      fmt::format("{} is {}; gradients are averaged as float16, bfloat16, float32 or float64", what,
                  type_name(tensor.scalar_type())));
}

Buffer buffer_of(const at::Tensor& tensor) {
  DDP_CHECK(tensor.is_contiguous(), "{}", describe(tensor));
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
          element_type(tensor, "a buffer")};
}

Buffer device_buffer_of(const at::Tensor& tensor) {
  DDP_CHECK(tensor.is_contiguous(), "{}", describe(tensor));
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
          type_of_elements(tensor, "a buffer")};
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && is_packed(tensor)) return tensor;
  const at::NoGradGuard no_grad;
  const at::Tensor copy = at::empty_strided(tensor.sizes(), packed_strides(tensor),
                                            at::TensorOptions(tensor.scalar_type()));
  return copy.copy_(tensor.detach());
}

at::Tensor registered_zeros(ProcessGroup& group, std::int64_t elements, at::ScalarType type) {
  const at::TensorOptions options(type);
  const std::size_t bytes = static_cast<std::size_t>(elements) * at::elementSize(type);
  if (auto memory = group.allocate(bytes)) {
    std::byte* const data = memory.get();
    std::memset(data, 0, bytes);
    return at::from_blob(
        data, {elements}, [memory](void*) mutable { memory.reset(); }, options);
  }
  return at::zeros({elements}, options);
}

std::string describe(const at::Tensor& tensor) {
  std::string text = fmt::format("{} [{}]", type_name(tensor.scalar_type()),
                                 fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
  if (tensor.layout() != at::kStrided) return text + " not strided";
  if (!tensor.is_contiguous()) {
    text += fmt::format(" strides [{}]",
                        fmt::join(tensor.strides().begin(), tensor.strides().end(), ", "));
  }
  return text;
}

bool is_packed(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense();
}

std::vector<std::int64_t> packed_strides(const at::Tensor& tensor) {
  if (is_packed(tensor)) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()));
  std::int64_t stride = 1;
  for (std::size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= tensor.size(static_cast<std::int64_t>(dim));
  }
  return strides;
}

at::Tensor slot_of(const at::Tensor& flat, std::int64_t first_element, const at::Tensor& like) {
  at::Tensor slot = at::empty({0}, flat.options());
  slot.set_(flat.storage(), flat.storage_offset() + first_element, like.sizes(),
            packed_strides(like));
  return slot;
}

std::vector<at::Tensor> slots_of(const at::Tensor& flat, const std::vector<at::Tensor>& likes) {
  std::vector<at::Tensor> slots;
  slots.reserve(likes.size());
  std::int64_t first_element = 0;
  for (const at::Tensor& like : likes) {
    slots.push_back(slot_of(flat, first_element, like));
    first_element += like.numel();
  }
  return slots;
}

void mark_changed(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

bool is_one_copy(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && !to.is_neg() &&
         !from.is_neg() && is_packed(to) && is_packed(from) && to.strides() == from.strides() &&
         to.device().is_cpu() && from.device().is_cpu();
}

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (is_one_copy(to, from)) {
    if (to.nbytes() != 0) std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
    mark_changed(to);
    return;
  }
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

void zero_values(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    const at::NoGradGuard no_grad;
    tensor.zero_();
    return;
  }
  if (tensor.nbytes() != 0) std::memset(tensor.data_ptr(), 0, tensor.nbytes());
  mark_changed(tensor);
}

void wait_quietly(WorkPtr& work) {
  if (!work) return;
  try {
    work->wait();
  } catch (const std::exception&) {
    // The caller already throws the first cause.
  }
  work.reset();
}

const at::Tensor& gradient_view(at::Tensor& kept, const at::Tensor& slot) {
  const bool is_free = kept.defined() && kept.use_count() == 1 && !kept.requires_grad();
  if (!is_free || !is_same_memory(kept, slot)) kept = slot.variable_data();
  return kept;
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.layout() == at::kStrided && b.layout() == at::kStrided &&
         a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace ddp
