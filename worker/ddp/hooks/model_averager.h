#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "worker/runtime/process_group.h"

namespace torch::optim {
class Optimizer;
}

// PyTorch's model averagers: replicas that train apart (post_local_sgd_hook.h) are averaged from
// time to time. Only parameters are averaged, neither buffers nor the optimizer's state.
namespace ddp {

// Averages parameters over a group, in place, as one operation for each element type. Skips
// parameters without a gradient; these must be the same ones on all ranks. Collective.
void average_model_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

class ModelAverager {
 public:
  explicit ModelAverager(std::shared_ptr<ProcessGroup> process_group);
  virtual ~ModelAverager() = default;

  // To be called once after every optimizer step, on all ranks. Averages if it is time.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  // The parameters of all groups of the optimizer.
  void average_parameters(const torch::optim::Optimizer& optimizer);

  std::int64_t step() const { return step_; }  // Calls so far.
  // Whether all ranks have the same parameters: the last step averaged over all ranks, or was
  // before the replicas began to train apart. Also true for a step of another process (load_state).
  bool in_agreement() const;

  // For Checkpointer::add_value, so that a resumed training does not warm up again and averages at
  // the same steps.
  nlohmann::json state() const { return {{"step", step_}}; }
  void load_state(const nlohmann::json& state);

 protected:
  // The group to average over at this step; null for none.
  virtual ProcessGroup* group_of(std::int64_t step) const = 0;
  // Steps before averaging begins: until then gradients are averaged over all ranks.
  virtual std::int64_t warm_up() const = 0;
  ProcessGroup& process_group() const { return *process_group_; }

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  std::int64_t step_ = 0;
};

// Averages over the group at step `warmup_steps` and every `period` steps from then on. A period of
// 1 averages at every step: DistributedDataParallel alone does that at less cost, as a line on
// stderr says once. Throws std::invalid_argument for a period below 1 or a negative warmup_steps.
class PeriodicModelAverager final : public ModelAverager {
 public:
  PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps,
                        std::shared_ptr<ProcessGroup> process_group);

 protected:
  ProcessGroup* group_of(std::int64_t step) const override;
  std::int64_t warm_up() const override { return warmup_steps_; }

 private:
  std::int64_t period_;
  std::int64_t warmup_steps_;
};

}  // namespace ddp
