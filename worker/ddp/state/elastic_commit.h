#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/ddp/state/registered_state.h"
#include "worker/ddp/state/state_dict.h"

// Internal to ElasticState: a commit in the memory of a rank. Local; one thread.
namespace ddp::elastic {

// Identifies a commit: the round that made it, and the serial number within it. All ranks have the
// same bytes under the same key. Greater is newer, because a round begins with a commit of an
// earlier round.
struct CommitKey {
  Round round = kNoRound;
  std::int64_t serial = -1;
  auto operator<=>(const CommitKey&) const = default;
};

// One rank's own state as bytes to send: its generators and values, and its hooks' residuals.
// `there` is false while the bytes are being written.
struct Part {
  std::vector<std::byte> bytes;
  bool there = false;
};

struct CommittedState {
  bool valid = false;  // The replicated state is whole.
  CommitKey key;
  std::int64_t step = -1;
  int world_size = 0;
  bool initial = false;  // From before any training.

  std::string header;  // JSON: values, optimizers, comm_hooks, tensors.
  std::vector<at::Tensor> tensors;
  std::vector<std::size_t> buffers;  // Which of them are buffers of modules.
  std::map<Rank, Part> parts;        // By rank of that world.
  bool made_buffers = false;         // By the last capture(), which found none that fit.

  // Drops parts of ranks that are not in `kept`, and marks the others as not there.
  void expect_parts(const std::vector<Rank>& kept);
  bool has_part(Rank rank) const;
};

// Copies the registered state into the commit: the replicated state and this rank's own part.
// Reuses the commit's buffers if they fit. kInvalidArgument naming what cannot be stored.
Result<void> capture(const RegisteredState& state, Rank rank, CommittedState& commit);

// Makes the tensors that the header names, unless they have that type and shape already.
void make_tensors(CommittedState& commit);

// The names of the communication hooks that the commit has.
std::vector<std::string> hook_names(const CommittedState& commit);

// Puts the commit into the registered state, as loading a checkpoint of that world does. Leaves
// hooks alone that the commit does not have. Reads every part that is there and needed. Changes
// nothing if it fails.
Result<void> put_back(const CommittedState& commit, RegisteredState& state, Rank rank,
                      int world_size);
// The same for one hook alone.
Result<void> put_back_hook(const CommittedState& commit, const std::string& name, CommHook& hook,
                           Rank rank, int world_size);

}  // namespace ddp::elastic
