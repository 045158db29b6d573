#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/flags/command_line.h"

// The file of --config: a JSON object with a key for each flag, by its whole name, with dashes or
// underscores, and the keys "program" and "arguments". Values are those of a command line: a text,
// a number, or true or false for a flag without a value. A list means its parts with commas between
// them, and an object means KEY=VALUE,... Comments (// and /* */) are allowed.
namespace ddp::flags {

// The file's text, at most one megabyte. The error message does not name the file.
Result<std::string> read_config_file(const std::string& path);

// Adds the flags of `json` that `line` lacks, and the program if it has none. `file` is for
// messages. Errors are exit_error with kExitInvalidValue and leave `line` partly filled.
Result<void> fill_from_config(CommandLine& line, const std::string& file, std::string_view json);

}  // namespace ddp::flags
