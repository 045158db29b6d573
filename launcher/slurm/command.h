#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::slurm {

struct FinishedCommand {
  int status = 0;      // 128 + n where signal n ended it.
  std::string output;  // Both of its outputs.
};

// Runs a short program of SLURM's, looked up in PATH, to its end; one that takes longer than a
// minute is killed, and SIGTERM does not end it. `input`, at most 32 KiB, is its standard input:
// what others must not see does not go into arguments. kNotFound where there is no such program,
// kIo where none can be started. This process must take its children's statuses by their numbers
// only, and not ignore SIGCHLD.
Result<FinishedCommand> run_command(const std::vector<std::string>& command,
                                    std::string_view input);

}  // namespace ddp::slurm
