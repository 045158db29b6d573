#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

// Inside of ElasticState: memory for the tensors of a commit, and the copy into it.
namespace ddp::elastic {

struct TensorSpec {
  at::ScalarType type;
  std::vector<std::int64_t> sizes;
};

// Makes `tensors` ones of these types and sizes, contiguous, on the host: those that are there if
// they are already, and true; else new ones, one after the other in a mapping of its own (with huge
// pages where the system has any to give, all of them touched now, so that the first commit into it
// costs what the others do). The mapping goes with the last of its tensors. std::bad_alloc.
bool fit_tensors(std::vector<at::Tensor>& tensors, const std::vector<TensorSpec>& specs);

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};
// All of them, with LibTorch's threads, past the caches: what is read again only after a failure
// need not drive the model out of them, and memory that is written whole need not be read first.
void stream_copies(std::span<const Copy> copies);

}  // namespace ddp::elastic
