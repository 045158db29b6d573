#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// SLURM's shorthand for the nodes of a job and for what runs on them. Pure.
namespace ddp::config {

// More than any machine has. A list of a few characters can stand for any number of names, so its
// length needs a bound.
inline constexpr std::size_t kMaxListedHosts = 65'536;

// SLURM_STEP_NODELIST and its like: "n[01-03,7],gpu-a[1-2]-ib" is n01 n02 n03 n7 gpu-a1-ib
// gpu-a2-ib. A name may have several groups; the last one varies fastest, as in SLURM: r[0-1]n[0-1]
// is r0n0 r0n1 r1n0 r1n1. Numbers keep the width of the first number of their range. Names come in
// the order in which they are written, which is SLURM_NODEID's; a name may come twice.
//
// kInvalidArgument names the place and the reason: an unmatched bracket, an empty name, a range
// that goes backwards, a character that no name may have, more than `limit` names.
Result<std::vector<std::string>> expand_host_list(std::string_view text,
                                                  std::size_t limit = kMaxListedHosts);

// SLURM_STEP_TASKS_PER_NODE: "4(x3),2" is 4 4 4 2, one number a node. kInvalidArgument as above.
Result<std::vector<int>> expand_task_counts(std::string_view text,
                                            std::size_t limit = kMaxListedHosts);

}  // namespace ddp::config
