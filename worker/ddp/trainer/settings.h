#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "worker/ddp/replica/replica.h"
#include "worker/ddp/trainer/trainer_options.h"
#include "worker/trainer_launch/launch_plan.h"

namespace ddp::trainer {

// What the options' words mean.
struct Settings {
  ReplicaOptions replica;
  bool data_parallel = false;  // DataParallel over all devices.
  // What parameters and batches are converted to. Nothing: they stay as they are.
  std::optional<at::ScalarType> type;
  // What batches are converted to in training alone.
  std::optional<at::ScalarType> training_type;
  bool on_gpu = false;
  WantedWorkers workers;
};

// Throws std::invalid_argument naming the option, its value and the valid values.
Settings read_settings(const TrainerOptions& options);

// The devices of this rank; several with data_parallel. Throws std::invalid_argument if there are
// not enough.
std::vector<c10::Device> devices_of(const Settings& settings);

}  // namespace ddp::trainer
