#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// The number of threads for loading, while nothing else runs: this process's share of its cores,
// which the node's workers divide.
int loading_threads();

struct ValueMove {
  at::Tensor to;
  at::Tensor from;  // Of equal sizes.
};

// Copies the values. Large amounts use loading_threads() threads, because one thread cannot use the
// memory's full bandwidth.
void move_values(const std::vector<ValueMove>& moves);

}  // namespace ddp
