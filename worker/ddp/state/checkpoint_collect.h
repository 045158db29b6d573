#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/ddp/state/registered_state.h"
#include "worker/ddp/state/sharded_tensor.h"

// Internal to Checkpointer: finds what one rank has to save, without copying any tensor, and copies
// it into a snapshot. Local; the training thread.
namespace ddp {

// One rank's share of a save. `plan` lacks the save id; `source` of each of its tensors is an index
// of `sources`.
struct Collected {
  checkpoint::SnapshotPlan plan;
  std::vector<at::Tensor> sources;
  // The sources without data, of which each rank has a part, and the rank that writes each. The
  // same on all ranks except for the parts.
  std::vector<WantedWhole> wanted;
  std::vector<std::size_t> wanted_sources;  // By `wanted`: an index of `sources`.
  // Kind and name of all that is registered, and names, types and shapes of what the ranks share
  // among them: the same on all ranks, or they would write different checkpoints.
  std::string registered;
  std::string shared;
};

struct CollectOptions {
  Rank rank = 0;
  int world_size = 1;
  // Parameters and the optimizers' tensors are dealt to all ranks; false: rank 0 has everything
  // that is replicated.
  bool share = true;
};

// Fills plan.files, plan.state (rank 0), plan.rank_state and the world. kInvalidArgument, naming
// the thing, for a tensor, a hook or a value that cannot be stored or throws.
Result<Collected> collect(const RegisteredState& state, const CollectOptions& options);

// Copies the tensors' current values into the memory of a snapshot with this layout.
void copy_into(std::span<std::byte> memory, const checkpoint::SnapshotLayout& layout,
               const std::vector<at::Tensor>& sources);

// A snapshot that refers to the tensors where they are. Only tensors that are not row-major on the
// CPU are copied; `keep` holds the copies. `sources` and `keep` must outlive the snapshot's use,
// and nobody may change the tensors meanwhile.
checkpoint::Snapshot in_place(const checkpoint::SnapshotLayout& layout,
                              const std::vector<at::Tensor>& sources,
                              std::vector<at::Tensor>& keep);

}  // namespace ddp
