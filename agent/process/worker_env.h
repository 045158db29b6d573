#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

// The environment of a worker: torchrun's variables with torchrun's meaning, and those of libddp.
// Pure.
namespace ddp::agent {

// What the environment names beyond the job and the round.
struct WorkerEnvInputs {
  int local_rank = 0;
  int control_fd = -1;  // DDP_CONTROL_FD: the worker's end of the socket to its agent.
  int shm_fd = -1;      // DDP_SHM_FD: memory of the local workers.
  int usable_cores =
      1;            // Of this node; OMP_NUM_THREADS becomes the worker's share unless it is set.
  int threads = 0;  // What OMP_NUM_THREADS becomes then; 0: the worker's share of usable_cores.
  std::string timer_file{};        // TORCHELASTIC_TIMER_FILE; empty: what is inherited.
  bool torch_lacks_libuv = false;  // USE_LIBUV becomes 0 unless it is set.
  int snapshots = 0;  // DDP_SNAPSHOTS: how many of a worker the agent takes at once; 0: absent.
  std::string error_file;  // TORCHELASTIC_ERROR_FILE; empty: the variable is absent.
};

// Each entry is NAME=value. `inherited` is passed on except for the names that this function gives;
// of those OMP_NUM_THREADS, USE_LIBUV, TORCH_NCCL_ASYNC_ERROR_HANDLING and the network interface
// keep the user's value.
// `round.master_addr` must be filled in.
std::vector<std::string> worker_environment(const config::JobSpec& spec,
                                            const wire::RoundStart& round,
                                            const WorkerEnvInputs& inputs,
                                            const std::vector<std::string>& inherited);

// What of it a worker that is running already must take over for a new round: all that
// worker_environment gives for this round, but for the descriptors and what belongs to the process
// (TORCHELASTIC_ERROR_FILE).
std::map<std::string, std::string> round_environment(const config::JobSpec& spec,
                                                     const wire::RoundStart& round, int local_rank);

// The environment of a process that waits for its place in a round: DDP_STANDBY=1 and nothing that
// names a rank, a world or shared memory. Of `inputs`, local_rank and shm_fd do not matter.
std::vector<std::string> standby_environment(const config::JobSpec& spec,
                                             const WorkerEnvInputs& inputs,
                                             const std::vector<std::string>& inherited);

// The workers of this node among all that have its role, which are counted node by node as ranks
// are.
struct RolePlace {
  int first_rank = 0;  // Of the first one of this node.
  int workers = 0;     // On all nodes.
};
RolePlace role_place(const wire::RoundStart& round);

// The rank of a local worker in this round.
Rank rank_of(const wire::RoundStart& round, int local_rank);

}  // namespace ddp::agent
