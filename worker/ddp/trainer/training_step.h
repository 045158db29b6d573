#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "worker/ddp/modules/data_parallel.h"
#include "worker/ddp/trainer/log_sink.h"
#include "worker/ddp/trainer/trainer_module.h"

namespace ddp::trainer {

// The loss of a batch: the module's training_step. With several devices, each device's replica
// takes a part of the batch, and their losses are weighted by samples.
class TrainingStep {
 public:
  // The module lies on the first device.
  TrainingStep(std::shared_ptr<TrainerModule> module, const std::vector<c10::Device>& devices);

  at::Tensor loss_of(const Batch& batch, std::int64_t batch_index, LogSink& sink);

 private:
  at::Tensor parallel_loss(const Batch& batch, std::int64_t batch_index, LogSink& sink);

  std::shared_ptr<TrainerModule> module_;
  std::vector<std::shared_ptr<TrainerModule>> others_;
  std::unique_ptr<ModuleReplicas> replicas_;  // Null with one device.
};

}  // namespace ddp::trainer
