#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "worker/ddp/trainer/data_loader.h"

namespace ddp::trainer {

// The batch on that device, its floating-point tensors in that type.
inline Batch converted(Batch batch, c10::Device device, std::optional<at::ScalarType> type) {
  for (at::Tensor& tensor : batch) {
    tensor = tensor.to(device);
    if (type && tensor.is_floating_point()) tensor = tensor.to(*type);
  }
  return batch;
}

// How many samples it has.
inline std::int64_t rows_of(const Batch& batch) {
  return batch.empty() || batch[0].dim() == 0 ? 0 : batch[0].size(0);
}

}  // namespace ddp::trainer
