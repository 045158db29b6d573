#pragma once

#include <optional>
#include <string>
#include <vector>

// `ddp-run top HOST[:PORT]`: the page of a rendezvous daemon in a terminal.
namespace ddp::status {

// If `arguments` (without argv[0]) ask for it, this process becomes ddp-top; gives the exit status
// if it cannot. Nothing if the line starts a job. To start a program named top, write ./top, or put
// -- before it.
std::optional<int> run_top_command(const std::vector<std::string>& arguments);

}  // namespace ddp::status
