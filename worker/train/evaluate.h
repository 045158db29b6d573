#pragma once

#include <cstdint>

#include "worker/collectives/tree_order.h"
#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/models/model.h"

namespace ddp::train {

// Which of the `of` equal shares of a data set a rank evaluates.
struct EvaluationShares {
  RankRange shares;
  int of = 1;
};

// The fraction of the data set that the model classifies correctly; the same number on all ranks.
// Share s consists of samples s, s + of, ..., taken `batch` at a time; each share belongs to
// exactly one rank. The model's parameters and buffers must be equal on all ranks and do not
// change; its training mode is restored. Collective.
double evaluate_accuracy(Model& model, const Dataset& data, std::int64_t batch,
                         const EvaluationShares& own, ProcessGroup& group);

}  // namespace ddp::train
