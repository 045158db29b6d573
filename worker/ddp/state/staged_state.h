#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/ddp/state/load_options.h"
#include "worker/ddp/state/registered_state.h"
#include "worker/ddp/state/state_dict.h"

namespace ddp {

// A change that may fail, and its undoing.
struct RiskyChange {
  std::function<void()> make;
  std::function<void()> undo;
  std::string what;
};

// What has been read and is ready to be put into the registered state: first the risky changes,
// which can be undone, then the others, which cannot fail. Local to a rank.
struct StagedState {
  std::vector<RiskyChange> risky;
  std::vector<Commit> commits;
  // What was left out because options.strict is off. The same on all ranks but for what belongs to
  // one of them.
  std::vector<std::string> notes;

  // kInvalidArgument with the message of the change that failed; later ones are not made.
  Result<void> make_risky() const;
  // Undoes what make_risky() has made.
  void undo() const;
  void commit() const;

 private:
  mutable std::size_t made_ = 0;
};

// Reads what `state` needs from the source, for this rank of a world of `world_size`; the source
// may be of another world size. Changes nothing. kMismatch naming what differs, or the error of
// reading. `state` must outlive the result, `source` need not.
Result<StagedState> stage_state(const RegisteredState& state, Rank rank, int world_size,
                                TensorSource& source, const LoadOptions& options = {});

}  // namespace ddp
