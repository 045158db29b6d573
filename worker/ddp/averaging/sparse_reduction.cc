#include "worker/ddp/averaging/sparse_reduction.h"

#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

SparseReduction::SparseReduction(std::shared_ptr<ProcessGroup> group, NamedTensor parameter,
                                 at::ScalarType type, SharedText tag)
    : group_(std::move(group)),
      parameter_(std::move(parameter)),
      type_(type),
      tag_(std::move(tag)),
      counts_(static_cast<std::size_t>(group_->size()), 0) {
  const at::Tensor& tensor = parameter_.tensor;
  if (tensor.dim() == 0) {
    throw std::invalid_argument(fmt::format(
        "parameter {} has no rows, so it cannot have a sparse gradient", parameter_.name));
  }
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) row_elements_ *= tensor.size(dim);
}

void SparseReduction::start(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor& like = parameter_.tensor;
  if (gradient.defined()) {
    const at::Tensor data = gradient.detach().cpu();
    const at::Tensor sparse =
        (data.layout() == at::kSparse ? data : data.to_sparse(/*sparse_dim=*/1)).coalesce();
    if (sparse.sizes() != like.sizes() || sparse.sparse_dim() != 1) {
      throw std::invalid_argument(
          fmt::format("the gradient of parameter {} has {} sparse dimensions; rows of the first "
                      "one can be reduced",
                      parameter_.name, sparse.sparse_dim()));
    }
    rows_ = sparse.indices().flatten().contiguous();
    values_ = sparse.values().to(type_).contiguous();
  } else {
    rows_ = at::empty({0}, at::kLong);
    values_ = at::empty({0}, at::TensorOptions(type_));
  }
  std::int64_t& mine = counts_[static_cast<std::size_t>(group_->rank())];
  mine = rows_.numel();
  counting_ = group_->all_gather({&mine, 1, DType::kI64},
                                 {counts_.data(), counts_.size(), DType::kI64}, {{}, tag_});
}

void SparseReduction::gather() {
  std::exchange(counting_, nullptr)->wait();
  const std::int64_t total = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  all_rows_ = at::empty({total}, at::kLong);
  all_values_ = at::empty({total * row_elements_}, values_.options());
  if (total == 0) return;
  std::vector<std::size_t> elements(counts_.begin(), counts_.end());
  rows_work_ = group_->all_gatherv(buffer_of(rows_), buffer_of(all_rows_), elements, {{}, tag_});
  for (std::size_t& count : elements) count *= static_cast<std::size_t>(row_elements_);
  if (row_elements_ == 0) return;
  values_work_ =
      group_->all_gatherv(buffer_of(values_), buffer_of(all_values_), elements, {{}, tag_});
}

at::Tensor SparseReduction::finish(double scale) {
  if (const WorkPtr work = std::exchange(rows_work_, nullptr)) work->wait();
  if (const WorkPtr work = std::exchange(values_work_, nullptr)) work->wait();
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> shape = parameter_.tensor.sizes().vec();
  shape[0] = all_rows_.numel();
  const at::Tensor sum = at::sparse_coo_tensor(all_rows_.unsqueeze(0), all_values_.view(shape),
                                               parameter_.tensor.sizes())
                             .coalesce();
  sum._values().mul_(scale);
  rows_.reset();
  values_.reset();
  all_rows_.reset();
  all_values_.reset();
  return sum.to(parameter_.tensor.device());
}

void SparseReduction::drain() {
  wait_quietly(counting_);
  wait_quietly(rows_work_);
  wait_quietly(values_work_);
}

}  // namespace ddp
