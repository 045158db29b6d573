#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// `ddp-run status HOST[:PORT] [--json]`: what a rendezvous daemon knows of its jobs, for people.
namespace ddp::run {

// Runs the command if `arguments` (without argv[0]) are one: the exit status. Nothing: the line
// starts a job. A program that is called status is started as ./status or behind --.
std::optional<int> run_status_command(const std::vector<std::string>& arguments);

// The page of GET /status as tables; kProtocol if it is no such page.
Result<std::string> status_text(std::string_view page);

}  // namespace ddp::run
