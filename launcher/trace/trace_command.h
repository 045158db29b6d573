#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp::trace {

// `ddp-run trace ...`: writes what the ranks of a running job do to a file, or says where the time
// went. Gives the exit status; nothing if the line is another one.
std::optional<int> run_trace_command(const std::vector<std::string>& arguments);

}  // namespace ddp::trace
