#include "worker/runtime/srun_tasks.h"

#include <limits>

#include <fmt/format.h>

#include "common/base/parse_number.h"

namespace ddp::runtime {
namespace {

// A variable that is missing or is not a number counts as absent.
int number_or(const Lookup& lookup, const char* name, int otherwise) {
  const auto text = lookup(name);
  if (!text) return otherwise;
  return parse_whole_number(*text, 1, std::numeric_limits<int>::max()).value_or(otherwise);
}

}  // namespace

SrunTasks srun_tasks(const Lookup& lookup) {
  if (!lookup("SLURM_STEP_ID") || !lookup("SLURM_PROCID")) return {};
  return {number_or(lookup, "SLURM_STEP_NUM_TASKS", 0),
          number_or(lookup, "SLURM_STEP_NUM_NODES", 1)};
}

std::string notice_of_lone_tasks(const Lookup& lookup) {
  const int tasks = srun_tasks(lookup).all;
  if (tasks < 2 || lookup("SLURM_PROCID") != "0" || lookup("WORLD_SIZE")) return {};
  return fmt::format(
      "srun has started {} tasks of this program, and each is a separate job; use `srun ddp-run "
      "PROGRAM` to make them one job",
      tasks);
}

}  // namespace ddp::runtime
