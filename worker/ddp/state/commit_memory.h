#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

// Internal to ElasticState: memory for the tensors of a commit, and the copy into it.
namespace ddp::elastic {

struct TensorSpec {
  at::ScalarType type;
  std::vector<std::int64_t> sizes;
};

// Gives `tensors` these types and sizes, contiguous, on the host. Returns true if the existing ones
// fit already. Otherwise makes new ones, one after another in one mapping (with huge pages if the
// system has any). It touches all pages now, and pins them for CUDA, so that the first commit
// costs no more than later ones. The mapping lives as long as the last of its tensors. Throws
// std::bad_alloc.
bool fit_tensors(std::vector<at::Tensor>& tensors, const std::vector<TensorSpec>& specs);

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};
// Makes all copies, with LibTorch's threads, bypassing the caches: a commit is read only after a
// failure, so it should not evict the model, and memory that is overwritten whole need not be read
// first.
void stream_copies(std::span<const Copy> copies);

}  // namespace ddp::elastic
