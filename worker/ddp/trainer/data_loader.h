#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// What several samples are to a step: tensors with a dimension for the samples in front, such as
// the input and the target.
using Batch = std::vector<at::Tensor>;

// Samples by number. Read by the training thread only.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // The samples with these numbers, in this order, in memory of the batch's own.
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

// A data set and how a rank takes batches of it; PyTorch's names and defaults. How samples are
// dealt to the ranks is the Trainer's: DistributedSampler, by (seed, epoch) alone.
struct DataLoader {
  std::shared_ptr<const Dataset> dataset;
  std::int64_t batch_size = 1;  // Of one rank.
  bool shuffle = false;
  // Leaves out the last joint batch of an epoch where it is not full. Without it the last one is
  // smaller, every sample is used exactly once, and counts as much as any other.
  bool drop_last = false;
  std::uint64_t seed = 0;
};

// std::invalid_argument for no data set, an empty one, or a batch_size below 1; `what` names it.
void check_loader(const DataLoader& loader, const char* what);

}  // namespace ddp
