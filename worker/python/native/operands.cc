#include "worker/python/native/operands.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/tensors/flat_memory.h"

namespace ddp::python {
namespace {

// How elements travel: `scale` elements of `type` each.
struct Form {
  DType type = DType::kU8;
  std::size_t scale = 1;
  bool reducible = false;
};

Form form_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kBool:
      return {DType::kU8, 1, true};
    case at::kChar:
      return {DType::kI8, 1, true};
    case at::kInt:
      return {DType::kI32, 1, true};
    case at::kLong:
      return {DType::kI64, 1, true};
    case at::kHalf:
      return {DType::kF16, 1, true};
    case at::kBFloat16:
      return {DType::kBF16, 1, true};
    case at::kFloat:
      return {DType::kF32, 1, true};
    case at::kDouble:
      return {DType::kF64, 1, true};
    case at::kComplexHalf:
      return {DType::kF16, 2, true};
    case at::kComplexFloat:
      return {DType::kF32, 2, true};
    case at::kComplexDouble:
      return {DType::kF64, 2, true};
    default:
      return {DType::kU8, c10::elementSize(type), false};
  }
}

ReduceOp::Kind kind_of(c10d::ReduceOp::RedOpType type) {
  switch (type) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProd;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kPremulSum;
    default:
      TORCH_CHECK_VALUE(false, "unknown reduction ", static_cast<int>(type));
  }
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* const supplement =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM has no factor");
  const at::Tensor& factor = supplement->tensor_factor;
  return factor.defined() ? factor.item<double>() : supplement->double_factor;
}

}  // namespace

void Operands::require(bool condition, const std::string& problem) const {
  TORCH_CHECK_VALUE(condition, operation_, ": ", problem);
}

void Operands::require_one(const std::vector<at::Tensor>& list) const {
  require(list.size() == 1, fmt::format("got {} tensors, takes one", list.size()));
}

void Operands::require_length(std::size_t length, int ranks, const char* what) const {
  require(length == static_cast<std::size_t>(ranks),
          fmt::format("{} has {} tensors for {} ranks", what, length, ranks));
}

void Operands::reduces(const at::Tensor& tensor, const c10d::ReduceOp& op, int ranks) {
  check(tensor);
  ReduceOp::Kind kind = kind_of(op);
  const bool is_complex = at::isComplexType(scalar_type_);
  if (kind == ReduceOp::kAvg && at::isIntegralType(scalar_type_, /*includeBool=*/false)) {
    kind = ReduceOp::kSum;
    divisor_ = ranks;
  }
  const bool is_linear =
      kind == ReduceOp::kSum || kind == ReduceOp::kAvg || kind == ReduceOp::kPremulSum;
  const bool fits =
      form_of(scalar_type_).reducible && valid(type_, kind) && (is_linear || !is_complex);
  TORCH_CHECK_TYPE(fits, operation_, ": elements of type ", at::toString(scalar_type_),
                   " cannot be reduced by ", name_of(ReduceOp(kind)));
  // For the bytes 0 and 1, the maximum is "or" and the minimum is "and", and NCCL has only those.
  if (scalar_type_ == at::kBool) {
    if (kind == ReduceOp::kSum || kind == ReduceOp::kBor) kind = ReduceOp::kMax;
    if (kind == ReduceOp::kBand) kind = ReduceOp::kMin;
  }
  reduction_ = kind == ReduceOp::kPremulSum ? ReduceOp::premul_sum(factor_of(op)) : ReduceOp(kind);
}

void Operands::check(const at::Tensor& tensor) {
  require(tensor.defined(), "a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.device().is_cpu() || tensor.device().is_cuda(), operation_,
                    ": a tensor is on ", tensor.device().str(),
                    "; this backend takes tensors on the CPU and on CUDA devices");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, operation_,
                    ": a tensor is not dense; convert it with to_dense()");
  if (!std::exchange(typed_, true)) {
    scalar_type_ = tensor.scalar_type();
    device_ = tensor.device();
    const Form form = form_of(scalar_type_);
    type_ = form.type;
    scale_ = form.scale;
  }
  TORCH_CHECK_TYPE(tensor.scalar_type() == scalar_type_, operation_, ": tensors of type ",
                   at::toString(scalar_type_), " and ", at::toString(tensor.scalar_type()),
                   "; all must have one type");
  TORCH_CHECK_VALUE(tensor.device() == device_, operation_, ": tensors on ", device_.str(),
                    " and on ", tensor.device().str(), "; all must be on one device");
}

void Operands::check_output(const at::Tensor& tensor) {
  check(tensor);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
          fmt::format("elements of the output of sizes [{}] share memory; clone() it",
                      fmt::join(tensor.sizes(), ", ")));
}

at::Tensor Operands::empty(at::IntArrayRef sizes) const {
  return at::empty(sizes, at::TensorOptions(scalar_type_).device(device_));
}

Buffer Operands::use(const at::Tensor& tensor) {
  used_.push_back(tensor);
  return {tensor.data_ptr(), count_of(tensor), type_};
}

Buffer Operands::result(const at::Tensor& tensor) {
  if (divisor_ != 1) results_.push_back(tensor);
  return use(tensor);
}

Buffer Operands::whole(void* begin, const std::vector<at::Tensor>& list) {
  used_.insert(used_.end(), list.begin(), list.end());
  return {begin, static_cast<std::size_t>(elements_of(list)) * scale_, type_};
}

Buffer Operands::input(const at::Tensor& tensor) {
  check(tensor);
  return use(is_plain(tensor) ? tensor : plain_copy(tensor));
}

Buffer Operands::output(const at::Tensor& tensor) {
  check_output(tensor);
  if (is_plain(tensor)) return result(tensor);
  const at::Tensor plain = empty(tensor.sizes());
  landings_.push_back({tensor, plain});
  return result(plain);
}

Buffer Operands::in_out(const at::Tensor& tensor) {
  check_output(tensor);
  if (is_plain(tensor)) return result(tensor);
  const at::Tensor copy = plain_copy(tensor);
  landings_.push_back({tensor, copy});
  return result(copy);
}

Buffer Operands::in_out_with(const at::Tensor& tensor, const at::Tensor& values) {
  check_output(tensor);
  check(values);
  {
    const at::NoGradGuard no_grad;
    tensor.detach().copy_(values.detach().reshape(tensor.sizes()));
  }
  return in_out(tensor);
}

Buffer Operands::inputs(const std::vector<at::Tensor>& list) {
  for (const at::Tensor& tensor : list) check(tensor);
  if (void* const begin = adjacent_begin(list)) return whole(begin, list);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = empty({elements_of(list)});
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
    begin += tensor.numel();
  }
  return use(flat);
}

Buffer Operands::outputs(const std::vector<at::Tensor>& list) {
  for (const at::Tensor& tensor : list) check_output(tensor);
  if (void* const begin = adjacent_begin(list)) return whole(begin, list);
  const at::Tensor flat = empty({elements_of(list)});
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    landings_.push_back({tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes())});
    begin += tensor.numel();
  }
  return use(flat);
}

void Operands::land() const {
  const at::NoGradGuard no_grad;
  if (divisor_ != 1) {
    for (const at::Tensor& result : results_) result.detach().div_(divisor_, "trunc");
  }
  for (const Landing& landing : landings_) landing.to.detach().copy_(landing.from);
}

}  // namespace ddp::python
