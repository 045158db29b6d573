#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/runtime/process_group.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"

namespace ddp::train {

// --init-from: gives the model the weights and buffers of the newest valid checkpoint of another
// training, all or those that --init-names covers, as --load-strict says. For a training that is at
// its beginning. Collective; every rank ends with the same. `say` gets a line for what was loaded
// and for what does not fit. Throws Failure: kExitDataInvalid where there is no valid checkpoint,
// kExitInvalidValue where it does not fit.
void load_initial_weights(const Options& options, const std::shared_ptr<ProcessGroup>& group,
                          Model& model, const std::function<void(const std::string&)>& say);

}  // namespace ddp::train
