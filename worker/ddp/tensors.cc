#include "worker/ddp/tensors.h"

#include <cstring>
#include <exception>
#include <stdexcept>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"

namespace ddp {
namespace {

const char* type_name(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBool:
      return "bool";
    default:
      return at::toString(type);
  }
}

}  // namespace

DType reduction_type(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    throw std::invalid_argument(fmt::format(
        "{} is on {} with layout {}; only dense tensors in CPU memory can be reduced", what,
        tensor.device().str(), tensor.layout() == at::kStrided ? "strided" : "not strided"));
  }
  if (tensor.scalar_type() == at::kFloat) return DType::kF32;
  if (tensor.scalar_type() == at::kDouble) return DType::kF64;
  throw std::invalid_argument(
      fmt::format("{} has element type {}; gradients are reduced as float32 or float64", what,
                  type_name(tensor.scalar_type())));
}

Buffer buffer_of(const at::Tensor& tensor) {
  DDP_CHECK(tensor.is_contiguous(), "{}", describe(tensor));
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
          reduction_type(tensor, "a buffer")};
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

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && is_packed(to) &&
      is_packed(from) && to.strides() == from.strides() && to.device().is_cpu() &&
      from.device().is_cpu()) {
    if (to.nbytes() != 0) std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
    // Autograd refuses to use a saved tensor whose values have changed since; this is how it knows.
    to.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

void wait_quietly(WorkPtr& work) {
  if (!work) return;
  try {
    work->wait();
  } catch (const std::exception&) {
    // The caller throws the first cause.
  }
  work.reset();
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.layout() == at::kStrided && b.layout() == at::kStrided &&
         a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

}  // namespace ddp
