#pragma once

#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "launcher/flags/flags.h"
#include "launcher/plan/job_plan.h"

namespace ddp::check {

// `ddp-run check FLAGS`, as the command line of a job whose workers do the check; other lines as
// they are. An exit status if nothing is left to do, because it was only asked for help.
std::variant<std::vector<std::string>, int> job_line(const std::vector<std::string>& arguments);

// Marks the options of such a line. kExitUsage if it names a program of its own.
Result<void> mark_check(flags::Options& options);

// Completes the plan of such a job: what its workers do.
void plan_check(const flags::Options& options, plan::JobPlan& plan);

// --health-check: looks at this node and writes into the plan what is wrong with it. Prints the
// table if something is. Does nothing without the flag. Only while there is one thread.
void check_health(const flags::Options& options, plan::JobPlan& plan);

}  // namespace ddp::check
