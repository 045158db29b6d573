#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/ddp_run/command_line.h"

// The file of --config: a JSON object with a key for each flag, by its whole name, with dashes or
// underscores, and the keys "program" and "arguments". Values are what stands on a command line: a
// text, a number, true or false for a flag without a value; a list stands for its parts with commas
// between them, an object for KEY=VALUE,... Comments (// and /* */) are allowed.
namespace ddp::run {

// At most a megabyte. The message does not name the file.
Result<std::string> read_config_file(const std::string& path);

// Adds the flags of `json` that `line` lacks, and the program if it has none. `file` is for
// messages. Errors are exit_error with kExitInvalidValue; `line` is then partly filled.
Result<void> fill_from_config(CommandLine& line, const std::string& file, std::string_view json);

}  // namespace ddp::run
