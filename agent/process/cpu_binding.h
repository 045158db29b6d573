#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "agent/process/cpu_topology.h"
#include "common/base/result.h"
#include "common/config/job_spec.h"

// --numa-binding: which CPUs each worker of a node runs on. The modes are torchrun's, but they also
// work for workers without a GPU, and without numactl.
namespace ddp::agent {

struct WorkerCpus {
  std::vector<int> cpus;  // By number.
  int threads = 1;        // Its share of `cpus`, which other workers may use, too.
};

// By local rank: the NUMA node of the device that the worker uses; -1 if it has none or the node is
// unknown. Pure.
std::vector<int> nodes_of_workers(const config::JobSpec& spec, const Topology& topology);

// Pure. `mode` is node, socket, exclusive or core-complex; `worker_nodes` as nodes_of_workers()
// gives them. Workers with -1 are spread over the nodes by local rank.
//   node          all CPUs of the worker's NUMA node
//   socket        all CPUs of the socket that the node is part of
//   exclusive     whole cores of the node that no other worker has; equal shares
//   core-complex  CPUs of the node that share their last cache; the node's workers take turns
// kInvalidArgument says which worker cannot be bound, why, and what to do.
Result<std::vector<WorkerCpus>> plan_binding(const Topology& topology, const std::string& mode,
                                             const std::vector<int>& worker_nodes);

// The plan for this machine and this process's CPUs; empty without --numa-binding.
Result<std::vector<WorkerCpus>> bind_workers(const config::JobSpec& spec);

// Binds all threads of a running process. No error if the process has ended.
void bind_process(pid_t pid, const std::vector<int>& cpus);

}  // namespace ddp::agent
