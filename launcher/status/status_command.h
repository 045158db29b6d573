#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// `ddp-run status HOST[:PORT] [--json | --watch]`: what a rendezvous daemon knows of its jobs, for
// people.
namespace ddp::status {

// Runs the command if `arguments` (without argv[0]) ask for it, and gives the exit status; nothing
// if the line starts a job. To start a program named status, write ./status, or put -- before it.
std::optional<int> run_status_command(const std::vector<std::string>& arguments);

// The page of GET /status as tables; kProtocol if `page` is something else.
Result<std::string> status_text(std::string_view page);

}  // namespace ddp::status
