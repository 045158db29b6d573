#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ddp::checkpoint {

// The command ddp-checkpoint: `ddp-checkpoint COMMAND ARGUMENTS`. `arguments` are those behind the
// program's name. Returns the exit status: 0; 1 of diff for a difference; kExitUsage for a command
// line that it cannot read; kExitInvalidValue for a value that makes no sense; kExitDataInvalid if
// something is not there or damaged; kExitCheckpointUnwritable if something cannot be written.
int run_tool(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace ddp::checkpoint
