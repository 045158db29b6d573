#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::agent {

// One logical CPU and what it belongs to. Cores and caches are named by their CPU with the smallest
// number, which differs between any two of a machine.
struct Cpu {
  int number = 0;
  int node = 0;    // NUMA node.
  int socket = 0;  // Physical package.
  int core = 0;
  int cache = 0;  // Those that share the last level of cache.

  friend bool operator==(const Cpu&, const Cpu&) = default;
};

// As much of a machine as binding workers to CPUs asks for.
struct Topology {
  std::vector<Cpu> cpus;       // Those that may be used, by number.
  std::vector<int> gpu_nodes;  // NUMA node of each GPU in the order of PCI addresses; -1: unknown.
};

// Reads "0-3,8,10-11", as the kernel writes it; stops at what is no such list.
std::set<int> parse_cpu_list(std::string_view text);

// The CPUs that this process may use.
std::set<int> allowed_cpus();

// As sched_setaffinity takes it; no words for no CPUs.
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus);

// Looks into `sys` ("/sys", or a copy of parts of one). What is not told there is one node, one
// socket, a core and a cache for each CPU.
Topology read_topology(const std::string& sys, const std::set<int>& allowed);

}  // namespace ddp::agent
