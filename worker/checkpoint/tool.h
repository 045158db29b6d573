#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ddp::checkpoint {

// The command ddp-checkpoint: looks into checkpoints without changing anything. `arguments` are
// those behind the program's name. Returns the exit status: 0, kExitUsage for a command line it
// cannot read, kExitDataInvalid if something is not there or damaged.
int run_tool(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace ddp::checkpoint
