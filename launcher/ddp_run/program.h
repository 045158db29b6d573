#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// argv of a worker: what is for Python (python_program.h, or any .py file) under python -u, -m as
// python -u -m, --run-path by runpy, anything else as it is. A name without a slash is that of a
// file for Python in this folder, as in torchrun, before it is looked for in Options::search_path,
// but after that where the file is executable.
std::vector<std::string> worker_command(const Options& options);

// The Python that runs it: what worker_command() begins with, what the program names in its first
// line (#!), or else the first of its arguments that is the name of one. Empty: none, as far as
// that can be seen.
std::string python_of(const Options& options);

// Looks for what the command needs, as execvp would: the executable, and a Python script's file.
// Errors are exit_error with kExitNotFound or kExitNotExecutable.
Result<void> check_program(const Options& options);

}  // namespace ddp::run
