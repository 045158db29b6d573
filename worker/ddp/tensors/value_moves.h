#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

// The cores of this process, shared with the other workers of the node: for loading, while nothing
// else goes on.
int loading_threads();

struct ValueMove {
  at::Tensor to;
  at::Tensor from;  // Of equal sizes.
};

// Copies the values, large amounts by loading_threads() threads: one alone does not use what the
// memory can do.
void move_values(const std::vector<ValueMove>& moves);

}  // namespace ddp
