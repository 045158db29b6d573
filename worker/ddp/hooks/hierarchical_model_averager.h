#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/ddp/hooks/model_averager.h"

namespace ddp {

// Averages over groups of several sizes, each with a period of its own (hierarchical SGD, arXiv
// 2010.12998). `period_group_size`: pairs of a period and a group size, periods ascending; groups
// are of consecutive ranks, and the last is all ranks:
//
//   ddp::HierarchicalModelAverager averager({{4, 8}, {16, 16}}, 100, group);   // of 16 ranks
//
// At each step from warmup_steps on, the largest period that divides the step's number averages;
// the step's number counts from the start of training, not of averaging, as in PyTorch.
// post_localSGD_hook does the averaging within a node. A single period of 1 gives one warning.
class HierarchicalModelAverager final : public ModelAverager {
 public:
  // Collective. Throws std::invalid_argument for no pairs, periods that are not ascending or below
  // 1, a last size that is not the group's, and sizes that do not divide it.
  HierarchicalModelAverager(std::vector<std::pair<std::int64_t, int>> period_group_size,
                            std::int64_t warmup_steps, std::shared_ptr<ProcessGroup> process_group);

 protected:
  ProcessGroup* group_of(std::int64_t step) const override;
  std::int64_t warm_up() const override { return warmup_steps_; }

 private:
  struct Level {
    std::int64_t period;
    std::shared_ptr<ProcessGroup> group;
  };
  std::vector<Level> levels_;  // The largest period first.
  std::int64_t warmup_steps_;
};

}  // namespace ddp
