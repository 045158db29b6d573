#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// argv of a worker: a .py file under python -u, -m as python -u -m, --run-path by runpy, anything
// else as it is.
std::vector<std::string> worker_command(const Options& options);

// Looks for what the command needs, as execvp would: the executable, and a Python script's file.
// Errors are exit_error with kExitNotFound or kExitNotExecutable. `search_path` is PATH.
Result<void> check_program(const Options& options, const std::string& search_path);

}  // namespace ddp::run
