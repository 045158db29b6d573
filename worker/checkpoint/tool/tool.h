#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ddp::checkpoint {

// The command ddp-checkpoint: `ddp-checkpoint COMMAND ARGUMENTS`. `arguments` are those after the
// program's name. Returns the exit status: 0 for success; 1 if diff finds a difference; kExitUsage
// for a wrong command line; kExitInvalidValue for an invalid value; kExitDataInvalid if something
// is missing or damaged; kExitCheckpointUnwritable if something cannot be written.
int run_tool(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace ddp::checkpoint
