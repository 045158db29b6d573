#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// Several samples for one step: tensors whose first dimension counts the samples, such as the input
// and the target.
using Batch = std::vector<at::Tensor>;

// Samples by number. Read by the training thread only.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // The samples with these numbers, in this order, in memory that the batch owns.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
};

// Sample i is row i of every tensor.
class TensorDataset final : public Dataset {
 public:
  // std::invalid_argument for no tensors, or unequal numbers of rows.
  explicit TensorDataset(Batch tensors);
  std::int64_t size() const override;
  Batch get_batch(std::span<const std::int64_t> indices) const override;

 private:
  Batch tensors_;
};

// A data set and how a rank takes batches from it, with PyTorch's names and defaults. The Trainer
// divides the samples among the ranks with a DistributedSampler, which depends on (seed, epoch)
// alone.
struct DataLoader {
  std::shared_ptr<const Dataset> dataset;
  std::int64_t batch_size = 1;  // Of one rank.
  bool shuffle = false;
  // true: drops the last joint batch of an epoch if it is not full. false: the last batch is
  // smaller, and every sample is used exactly once and has the same weight.
  bool drop_last = false;
  std::uint64_t seed = 0;
};

}  // namespace ddp
