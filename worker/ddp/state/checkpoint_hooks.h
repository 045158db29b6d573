#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/state_dict.h"

// Converts the state of communication hooks to and from a checkpoint, for Checkpointer.
namespace ddp {

struct HookSnapshot {
  nlohmann::json description;  // For the manifest; that of rank 0 counts.
  std::vector<StateTensor> replicated;
  std::vector<StateTensor> per_rank;
};

// The hook's current state under full names. kInvalidArgument, naming the hook, if it cannot be
// stored.
Result<HookSnapshot> snapshot_hook(const std::string& name, const CommHook& hook);

// Reads what CommHook::restore takes: this rank's state or, if the number of ranks has changed, the
// mean over all former ranks. kMismatch, naming the hook and the tensor, for another kind of hook
// or a missing tensor; kCorrupt for an invalid description.
Result<CommHookState> read_hook_state(const std::string& name, const CommHook& hook, Rank rank,
                                      int world_size, TensorSource& source);

}  // namespace ddp
