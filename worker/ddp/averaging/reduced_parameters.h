#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/module_state.h"

namespace ddp {

// Finds parameters that another reducer of this process has, too. Both would write to the same
// .grad while the other's buckets are in flight. Having two is not an error yet, because one may be
// about to replace the other. Any thread.
class ReducedParameters {
 public:
  explicit ReducedParameters(const std::vector<NamedTensor>& parameters);
  ~ReducedParameters();
  ReducedParameters(const ReducedParameters&) = delete;
  ReducedParameters& operator=(const ReducedParameters&) = delete;

  struct Shared {
    std::size_t index;  // Of the parameter.
    int reducers;
  };
  // The first of the parameters that another one has. Costs next to nothing unless a reducer has
  // come or gone since the last call. One thread at a time.
  std::optional<Shared> find_shared();

 private:
  std::vector<at::Tensor> parameters_;
  std::uint64_t checked_ = 0;  // The registry's generation when there was none.
};

}  // namespace ddp
