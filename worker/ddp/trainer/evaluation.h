#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "worker/ddp/trainer/amount.h"
#include "worker/ddp/trainer/data_loader.h"
#include "worker/ddp/trainer/metrics.h"
#include "worker/ddp/trainer/trainer_module.h"
#include "worker/runtime/process_group.h"

namespace ddp::trainer {

struct Evaluation {
  const DataLoader& data;
  Amount limit;
  c10::Device device;
  std::optional<at::ScalarType> type;
};

// Calls `step` for each batch of this rank, with the numbers of its samples, the module in
// evaluation mode and without gradients; the mode of each of its parts is restored. Every sample is
// in one batch of one rank. Collective at its end: returns what was logged, over all ranks.
using EvaluationStep = std::function<void(const Batch& batch, std::int64_t batch_index,
                                          std::span<const std::int64_t> samples)>;
MetricValues evaluate(const Evaluation& evaluation, TrainerModule& module, ProcessGroup& group,
                      const EvaluationStep& step);

}  // namespace ddp::trainer
