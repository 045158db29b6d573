#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/state_dict.h"

// Between the state of communication hooks and a checkpoint: for Checkpointer.
namespace ddp {

struct HookSnapshot {
  nlohmann::json description;  // For the manifest; that of rank 0 counts.
  std::vector<StateTensor> replicated;
  std::vector<StateTensor> per_rank;
};

// The hook's present state under full names. kInvalidArgument, naming the hook, if it cannot be
// stored.
Result<HookSnapshot> snapshot_hook(const std::string& name, const CommHook& hook);

// Reads what CommHook::restore takes: of this rank or, if the number of ranks has changed, with the
// mean over all ranks that there were. kMismatch, naming the hook and the tensor, for another kind
// of hook, or what a rank's state lacks; kCorrupt for a description that makes no sense.
Result<CommHookState> read_hook_state(const std::string& name, const CommHook& hook, Rank rank,
                                      int world_size, TensorSource& source);

}  // namespace ddp
