#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/transport/engine_kind.h"

namespace ddp {

// A worker's place as its environment describes it, checked for consistency.
struct WorkerEnvironment {
  Rank rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  Round round = 0;
  std::string run_id = "none";
  // The store of the job: DDP_STORE_ADDR and DDP_STORE_PORT, or MASTER_ADDR and MASTER_PORT.
  std::string master_addr;  // Empty in a world of one node without virtual_node.
  int master_port = 0;
  // DDP_VIRTUAL_NODE: neighbouring workers of one agent count as one node only if they have the
  // same value, so that one machine can act as several nodes. Set on all workers or on none.
  std::optional<std::string> virtual_node;
  EngineKind engine = EngineKind::kTcp;  // DDP_LINK: what carries data between nodes.
  int shm_fd = -1;  // -1: not started by ddp-run; every rank counts as a node of its own.
};

using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// Without WORLD_SIZE: a world of one. Throws std::invalid_argument, which names the variable, its
// value and what is expected.
WorkerEnvironment read_worker_environment(const Lookup& lookup);

// Numeric addresses at which other machines may reach this one, best first: that of the way to
// `host`, where the job's store is. If `host` is only the agent's end of that way (a loopback
// address), DDP_COORDINATOR_ADDR says where it leads.
std::vector<std::string> own_addresses(const std::string& host, int port);

// Whether this process was started without a place in the world, to wait for one (DDP_STANDBY=1).
bool is_standby();

// Whether this process has its rank from mpirun alone.
bool is_placed_by_mpi();

// The variables of this process. RANK, WORLD_SIZE and the like follow from mpirun's variables if
// they are not set (mpi_variables.h).
std::optional<std::string> process_variable(const std::string& name);

}  // namespace ddp
