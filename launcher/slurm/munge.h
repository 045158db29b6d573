#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

// Secrets through MUNGE, with which SLURM clusters authenticate users. What a process of a user has
// sealed, only processes of that user on machines of the cluster can open, and they learn which
// user sealed it (munge(1), unmunge(1)). Each call runs MUNGE's own program, which takes
// milliseconds. Errors: kNotFound if that program is missing; kIo with its message if it refuses.
namespace ddp::slurm {

// The sealed text: one line, which anybody may see.
Result<std::string> seal(std::string_view text);

// kInvalidArgument if another user has sealed it. Its age does not matter, nor whether it was
// opened before, because every node opens it at a time of its own.
Result<std::string> unseal(std::string_view sealed);

// The user id and the text in unmunge's output; kProtocol if the output is something else.
struct Unsealed {
  unsigned uid = 0;
  std::string text;
};
Result<Unsealed> parse_unmunge(std::string_view output);

}  // namespace ddp::slurm
