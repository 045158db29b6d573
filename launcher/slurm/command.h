#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::slurm {

struct FinishedCommand {
  int status = 0;      // 128 + n if signal n ended it.
  std::string output;  // Standard output and standard error.
};

// Runs a short program of SLURM's from PATH to its end. A program that takes longer than a minute
// is killed; SIGTERM does not end it. `input`, at most 32 KiB, is its standard input, so that
// secrets do not appear in arguments. kNotFound if there is no such program, kIo if it cannot be
// started. This process must wait for its children only by their process ids, and must not ignore
// SIGCHLD.
Result<FinishedCommand> run_command(const std::vector<std::string>& command,
                                    std::string_view input);

}  // namespace ddp::slurm
