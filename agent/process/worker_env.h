#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

// The environment of a worker: torchrun's variables with the same meanings, and those of libddp.
// Pure.
namespace ddp::agent {

// What the environment depends on besides the job and the round.
struct WorkerEnvInputs {
  int local_rank = 0;
  int control_fd = -1;   // DDP_CONTROL_FD: the worker's end of the socket to its agent.
  int shm_fd = -1;       // DDP_SHM_FD: memory of the local workers.
  int usable_cores = 1;  // CPU cores of this node.
  // OMP_NUM_THREADS, unless the user has set it; 0: the worker's share of usable_cores.
  int threads = 0;
  std::string timer_file{};        // TORCHELASTIC_TIMER_FILE; empty: what is inherited.
  bool torch_lacks_libuv = false;  // USE_LIBUV becomes 0 unless it is set.
  int snapshots = 0;  // DDP_SNAPSHOTS: how many the agent accepts of a worker at once; 0: absent.
  std::string error_file;  // TORCHELASTIC_ERROR_FILE; empty: the variable is absent.
};

// Each entry is NAME=value. Variables that this function sets override `inherited`, except that
// OMP_NUM_THREADS, USE_LIBUV and TORCH_NCCL_ASYNC_ERROR_HANDLING keep the user's value. The others
// of `inherited` are passed on. `round.master_addr` must be filled in.
std::vector<std::string> worker_environment(const config::JobSpec& spec,
                                            const wire::RoundStart& round,
                                            const WorkerEnvInputs& inputs,
                                            const std::vector<std::string>& inherited);

// The variables that a running worker must take over for a new round: all that worker_environment
// sets for this round, except the descriptors and variables that belong to the process
// (TORCHELASTIC_ERROR_FILE).
std::map<std::string, std::string> round_environment(const config::JobSpec& spec,
                                                     const wire::RoundStart& round, int local_rank);

// The environment of a process that waits for its place in a round: DDP_STANDBY=1, and no variable
// that names a rank, a world or shared memory. local_rank and shm_fd of `inputs` are not used.
std::vector<std::string> standby_environment(const config::JobSpec& spec,
                                             const WorkerEnvInputs& inputs,
                                             const std::vector<std::string>& inherited);

// The place of this node's workers among all workers of the same role. These are counted node by
// node, like ranks.
struct RolePlace {
  int first_rank = 0;  // Role rank of the first worker of this node.
  int workers = 0;     // How many there are on all nodes.
};
RolePlace role_place(const wire::RoundStart& round);

// The rank of a local worker in this round.
Rank rank_of(const wire::RoundStart& round, int local_rank);

}  // namespace ddp::agent
