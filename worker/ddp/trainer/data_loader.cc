#include "worker/ddp/trainer/data_loader.h"

#include <stdexcept>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

namespace ddp {

TensorDataset::TensorDataset(Batch tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw std::invalid_argument("TensorDataset was given no tensors");
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.dim() > 0 && tensor.size(0) == tensors_[0].size(0)) continue;
    throw std::invalid_argument(fmt::format(
        "TensorDataset: every tensor has a row for each sample, but the first has {} and another "
        "{}",
        tensors_[0].dim() > 0 ? tensors_[0].size(0) : 0, tensor.dim() > 0 ? tensor.size(0) : 0));
  }
}

std::int64_t TensorDataset::size() const { return tensors_[0].size(0); }

Batch TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  // from_blob() takes no pointer to const; it is read only.
  const at::Tensor rows =
      at::from_blob(const_cast<std::int64_t*>(indices.data()),
                    {static_cast<std::int64_t>(indices.size())}, at::TensorOptions(at::kLong));
  Batch batch;
  for (const at::Tensor& tensor : tensors_) batch.push_back(tensor.index_select(0, rows));
  return batch;
}

}  // namespace ddp
