#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::agent {

// One logical CPU and what it belongs to. Cores and caches are named by the smallest number of
// their CPUs, which is unique in a machine.
struct Cpu {
  int number = 0;
  int node = 0;    // NUMA node.
  int socket = 0;  // Physical package.
  int core = 0;
  int cache = 0;  // Shared last-level cache.

  friend bool operator==(const Cpu&, const Cpu&) = default;
};

// What binding workers to CPUs needs to know of a machine.
struct Topology {
  std::vector<Cpu> cpus;       // Those that may be used, by number.
  std::vector<int> gpu_nodes;  // NUMA node of each GPU in the order of PCI addresses; -1: unknown.
};

// Reads a list such as "0-3,8,10-11", as the kernel writes it. Stops at the first character that
// does not belong to one.
std::set<int> parse_cpu_list(std::string_view text);

// A mask for sched_setaffinity; empty for no CPUs.
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus);

// Reads `sys` ("/sys", or a copy of parts of it). Where information is missing: one node, one
// socket, and a core and a cache for each CPU.
Topology read_topology(const std::string& sys, const std::set<int>& allowed);

}  // namespace ddp::agent
