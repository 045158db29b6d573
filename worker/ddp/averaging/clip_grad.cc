#include "worker/ddp/averaging/clip_grad.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

namespace ddp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kLanes = 8;

// Folds terms of all values into one number. It keeps several running results, so that the
// processor can begin an addition before the last one ends; which value goes to which result is
// fixed.
template <typename T, typename Term, typename Fold>
double fold_values(const T* values, std::size_t count, Term term, Fold fold) {
  std::array<double, kLanes> lanes{};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t at = 0; at < whole; at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = fold(lanes[lane], term(static_cast<double>(values[at + lane])));
    }
  }
  for (std::size_t at = whole; at < count; ++at) {
    lanes[at - whole] = fold(lanes[at - whole], term(static_cast<double>(values[at])));
  }
  double total = 0;
  for (const double lane : lanes) total = fold(total, lane);
  return total;
}

double sum(double a, double b) { return a + b; }
// Keeps a NaN, which std::max would drop.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// The gradient's part of the norm before the root is taken.
template <typename T>
double part_of(const at::Tensor& gradient, double norm_type) {
  const T* values = gradient.data_ptr<T>();
  const auto count = static_cast<std::size_t>(gradient.numel());
  const auto size = [](double value) { return std::abs(value); };
  if (norm_type == kInfinity) return fold_values(values, count, size, larger);
  if (norm_type == 1) return fold_values(values, count, size, sum);
  return fold_values(
      values, count, [](double value) { return value * value; }, sum);
}

double part_of(at::Tensor gradient, double norm_type) {
  if (gradient.is_sparse()) gradient = gradient.coalesce()._values();
  // In the order of the elements, because the order in memory may differ between ranks.
  gradient = gradient.to(at::kCPU).contiguous();
  if (gradient.scalar_type() == at::kDouble) return part_of<double>(gradient, norm_type);
  return part_of<float>(gradient.to(at::kFloat), norm_type);
}

void check_clipping(double max_norm, double norm_type) {
  if (norm_type != 1 && norm_type != 2 && norm_type != kInfinity) {
    throw std::invalid_argument(
        fmt::format("clip_grad_norm_: norm_type is {}; it must be 1, 2 or infinity", norm_type));
  }
  if (std::isnan(max_norm)) throw std::invalid_argument("clip_grad_norm_: max_norm is NaN");
}

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& gradients,
                      const std::vector<at::Tensor>& counted,
                      const std::function<double(double)>& join, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  check_clipping(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  double total = 0;
  for (const at::Tensor& gradient : counted) {
    const double part = part_of(gradient.detach(), norm_type);
    total = norm_type == kInfinity ? larger(total, part) : total + part;
  }
  total = join(total);
  const double norm = norm_type == 2 ? std::sqrt(total) : total;
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw std::runtime_error(fmt::format("clip_grad_norm_: the norm of the gradients is {}", norm));
  }
  // PyTorch adds the same small number.
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor);
  return norm;
}

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  // Module::parameters() has a shared parameter once for each of its names; Python's has it once.
  std::vector<at::Tensor> gradients;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  const auto alone = [](double sum) { return sum; };
  return clip_gradients(gradients, gradients, alone, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace ddp
