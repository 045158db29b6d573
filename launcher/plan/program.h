#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/flags/flags.h"

namespace ddp::plan {

// argv of a worker. Programs for Python (see python_program.h; also every .py file) run under
// python -u, modules under python -u -m, --run-path with runpy, and everything else directly. As in
// torchrun, a name without a slash means a file for Python in this folder first, and then a program
// in Options::search_path. If the file is executable, the search path comes first.
std::vector<std::string> worker_command(const flags::Options& options);

// The Python interpreter that runs the program: the first word of worker_command(), the interpreter
// in the program's #! line, or else the first argument that names a Python. Empty if none of these
// is a Python.
std::string python_of(const flags::Options& options);

// Checks that what the command needs exists, as execvp would: the executable, and the file of a
// Python script. Errors are exit_error with kExitNotFound or kExitNotExecutable.
Result<void> check_program(const flags::Options& options);

}  // namespace ddp::plan
