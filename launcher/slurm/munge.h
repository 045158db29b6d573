#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

// Secrets by MUNGE, by which SLURM's clusters tell who somebody is: what one process of a user has
// sealed, only processes of that user on machines of the cluster can open, and they learn that it
// was this user who sealed it (munge(1), unmunge(1)). Each call runs MUNGE's own program, which
// takes milliseconds. Errors: kNotFound without that program, kIo where it refuses, with its words.
namespace ddp::slurm {

// A line of text that anybody may see.
Result<std::string> seal(std::string_view text);

// kInvalidArgument where it was sealed by another user. How old it is, and whether it was opened
// before, does not matter: it is a letter and no ticket.
Result<std::string> unseal(std::string_view sealed);

// The user's number and the text in what unmunge prints; kProtocol where it is something else.
struct Unsealed {
  unsigned uid = 0;
  std::string text;
};
Result<Unsealed> parse_unmunge(std::string_view output);

}  // namespace ddp::slurm
