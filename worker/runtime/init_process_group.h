#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Names and meanings are those of torch.distributed.init_process_group().
struct InitProcessGroupOptions {
  std::string init_method = "env://";
  int world_size = -1;  // -1: given by the init_method.
  int rank = -1;
  // Where the ranks meet, instead of an init_method; world_size and rank must be given.
  std::shared_ptr<Store> store = {};
  // Jobs that share a store need different names.
  std::string group_name = {};
  ProcessGroupOptions group = {};
};

// Makes a process group of processes that ddp-run did not start. Collective: returns when all
// world_size ranks have joined, at most ProcessGroupOptions::connect_timeout later. Workers of
// ddp-run already have a place: for them this is ProcessGroup::from_environment().
//
//   env://            RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe the group. Rank 0
//                     serves the store there, unless TORCHELASTIC_USE_AGENT_STORE=True says that an
//                     agent does, or the port is taken. Without RANK and WORLD_SIZE: what
//                     mpirun has started (runtime/mpi_variables.h), or a group of one. Under
//                     ddp-run (DDP_SHM_FD is set): from_environment().
//   tcp://HOST:PORT   likewise, with world_size and rank as arguments or as ?rank=R&world_size=N.
//   file:///PATH      a file that all ranks see and that does not exist yet. It is made, and
//                     removed as soon as all ranks have joined, so the next group can use the same
//                     path. A file left by an earlier start, in which not all ranks joined, is an
//                     error.
//
// The rank that serves the store starts the program ddp-rendezvous (runtime/store_daemon.h says
// where it is looked for), which lives as long as the process of rank 0. A daemon that already runs
// can serve one group after another: each rank counts how often it has used it.
//
// Ranks of one machine share memory (runtime/met_group.h says when they cannot).
//
// Throws std::invalid_argument, which names the variable or the argument, or CollectiveError:
// kTimeout names the ranks that did not join, kMismatch a different world_size, kExists a file of
// an earlier start or a rank that joined twice.
std::shared_ptr<ProcessGroup> init_process_group(const InitProcessGroupOptions& options = {});
std::shared_ptr<ProcessGroup> init_process_group(const std::string& init_method,
                                                 int world_size = -1, int rank = -1);

}  // namespace ddp
