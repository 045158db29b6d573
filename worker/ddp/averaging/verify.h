#pragma once

#include <string>
#include <vector>

#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Checks that the module is the same on all ranks: names, element types, shapes, strides and
// requires_grad of every parameter, the same of every buffer, which names share a tensor, and how
// tensors are distributed over devices other than the CPU. Then compares the settings, lines of
// text that must be equal, too. Collective.
//
// Where they differ, every rank throws the same std::invalid_argument, which names the first
// difference and the two ranks; the group stays usable. Throws CollectiveError if the exchange
// fails.
void verify_same_model(const ModuleState& state, ProcessGroup& group,
                       const std::vector<std::string>& settings = {});

}  // namespace ddp
