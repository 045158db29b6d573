// What runs as a worker.
#include "launcher/ddp_run/flag_reader.h"

namespace ddp::run {

void read_program_flags(FlagReader& reader, Options& options) {
  if (const GivenFlag* given = reader.find("role"); given != nullptr) {
    if (given->value.empty()) reader.wrong(given->shown, "the name is empty");
    options.role = given->value;
  }
  if (const GivenFlag* given = reader.find("start-method");
      given != nullptr && given->value != "spawn" && given->value != "fork" &&
      given->value != "forkserver") {
    reader.wrong(given->shown, "there are spawn, fork and forkserver");
  }
  options.module = reader.has("module");
  options.no_python = reader.has("no-python");
  if (options.module && options.no_python) {
    reader.wrong("--module with --no-python", "a module needs Python; leave one of them out");
  }
  if (const char* python = reader.environment("PYTHON_EXEC"); python != nullptr && *python != '\0')
    options.python = python;
  if (!reader.line().has_program) {
    return reader.fail(
        exit_error(kExitUsage,
                   "no program to run; write for example: ddp-run --standalone --nproc-per-node 2 "
                   "train.py. --help lists all flags"));
  }
  if (reader.line().program.empty()) {
    return reader.fail(
        exit_error(kExitUsage, "the program's name is empty; --help lists all flags"));
  }
  options.program = reader.line().program;
  options.arguments = reader.line().arguments;
}

}  // namespace ddp::run
