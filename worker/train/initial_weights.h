#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/runtime/process_group.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"

namespace ddp::train {

// --init-from: loads weights and buffers of the newest valid checkpoint of another training into
// the model: all of them, or those that --init-names matches. For the beginning of a training.
// Collective; all ranks end with the same values. `say` gets a line for what was loaded. Throws
// TrainingFailure with kExitDataInvalid if there is no valid checkpoint, kExitInvalidValue if it
// does not fit.
void load_initial_weights(const Options& options, const std::shared_ptr<ProcessGroup>& group,
                          Model& model, const std::function<void(const std::string&)>& say);

}  // namespace ddp::train
