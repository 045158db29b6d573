#include "agent/process/cpu_binding.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>

#include "common/process/this_process.h"

namespace ddp::agent {
namespace {

using Groups = std::map<int, std::vector<int>>;  // Node, core or cache -> numbers of its CPUs.

template <typename Member>
Groups group(const std::vector<Cpu>& cpus, int node, Member member) {
  Groups groups;
  for (const Cpu& cpu : cpus) {
    if (cpu.node == node) groups[cpu.*member].push_back(cpu.number);
  }
  return groups;
}

// Workers without a device are spread over the nodes that have CPUs.
Result<std::vector<int>> settle_nodes(const Topology& topology, const std::vector<int>& wanted) {
  std::set<int> present;
  for (const Cpu& cpu : topology.cpus) present.insert(cpu.node);
  const std::vector<int> nodes(present.begin(), present.end());
  std::vector<int> settled;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] >= 0 && !present.contains(wanted[i])) {
      return make_error(Errc::kInvalidArgument,
                        "the device of local rank {} is at NUMA node {}, but this process may use "
                        "no CPU of that node; widen its CPU mask, or leave --numa-binding out",
                        i, wanted[i]);
    }
    settled.push_back(wanted[i] >= 0 ? wanted[i] : nodes[i * nodes.size() / wanted.size()]);
  }
  return settled;
}

std::vector<int> cpus_of_socket(const Topology& topology, int node) {
  std::set<int> sockets;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) sockets.insert(cpu.socket);
  }
  std::vector<int> cpus;
  for (const Cpu& cpu : topology.cpus) {
    if (sockets.contains(cpu.socket)) cpus.push_back(cpu.number);
  }
  return cpus;
}

std::vector<int> all_of(const Groups& groups) {
  std::vector<int> cpus;
  for (const auto& [key, members] : groups) cpus.insert(cpus.end(), members.begin(), members.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// The share of worker number `index` of `count` on the node. The first workers share the remainder.
std::vector<int> share_of_cores(const Groups& cores, std::size_t index, std::size_t count) {
  const std::size_t each = cores.size() / count;
  const std::size_t more = cores.size() % count;
  const std::size_t begin = index * each + std::min(index, more);
  const std::size_t size = each + (index < more ? 1 : 0);
  Groups mine;
  std::size_t at = 0;
  for (const auto& core : cores) {
    if (at >= begin && at < begin + size) mine.insert(core);
    ++at;
  }
  return all_of(mine);
}

// Larger groups first, because this process may not be allowed to use all CPUs of a group.
std::vector<int> core_complex(const Groups& caches, std::size_t index) {
  std::vector<const std::vector<int>*> by_size;
  for (const auto& [key, cpus] : caches) by_size.push_back(&cpus);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto* a, const auto* b) { return a->size() > b->size(); });
  return *by_size[index % by_size.size()];
}

}  // namespace

std::vector<int> nodes_of_workers(const config::JobSpec& spec, const Topology& topology) {
  std::vector<int> nodes;
  for (int local_rank = 0; local_rank < spec.nproc; ++local_rank) {
    int gpu = local_rank;
    const auto index = static_cast<std::size_t>(local_rank);
    if (!spec.devices.empty()) {
      const std::string device = index < spec.devices.size() ? spec.devices[index] : "";
      const auto read = std::from_chars(device.data(), device.data() + device.size(), gpu);
      // A name (GPU-...) does not tell the index.
      if (read.ec != std::errc()) gpu = -1;
    }
    const bool known = gpu >= 0 && static_cast<std::size_t>(gpu) < topology.gpu_nodes.size();
    nodes.push_back(known ? topology.gpu_nodes[static_cast<std::size_t>(gpu)] : -1);
  }
  return nodes;
}

Result<std::vector<WorkerCpus>> plan_binding(const Topology& topology, const std::string& mode,
                                             const std::vector<int>& worker_nodes) {
  if (topology.cpus.empty())
    return make_error(Errc::kInvalidArgument, "this process may use no known CPU");
  const auto nodes = settle_nodes(topology, worker_nodes);
  if (!nodes) return nodes.error();
  std::map<int, std::size_t> count;  // The number of workers of each node.
  for (const int node : *nodes) ++count[node];
  std::map<int, std::size_t> next;  // How many of them have got their CPUs.
  std::vector<WorkerCpus> plan;
  for (const int node : *nodes) {
    const std::size_t index = next[node]++;
    WorkerCpus worker;
    if (mode == "socket") {
      worker.cpus = cpus_of_socket(topology, node);
    } else if (mode == "exclusive") {
      const Groups cores = group(topology.cpus, node, &Cpu::core);
      if (cores.size() < count[node]) {
        return make_error(Errc::kInvalidArgument,
                          "NUMA node {} has only {} usable cores for {} workers, which must not "
                          "share cores; lower --nproc-per-node, or use --numa-binding node",
                          node, cores.size(), count[node]);
      }
      worker.cpus = share_of_cores(cores, index, count[node]);
    } else if (mode == "core-complex") {
      worker.cpus = core_complex(group(topology.cpus, node, &Cpu::cache), index);
    } else {
      worker.cpus = all_of(group(topology.cpus, node, &Cpu::core));
    }
    plan.push_back(std::move(worker));
  }
  for (WorkerCpus& worker : plan) {
    const auto sharing =
        std::count_if(plan.begin(), plan.end(),
                      [&worker](const WorkerCpus& other) { return other.cpus == worker.cpus; });
    worker.threads = std::max(1, static_cast<int>(worker.cpus.size()) / static_cast<int>(sharing));
  }
  return plan;
}

Result<std::vector<WorkerCpus>> bind_workers(const config::JobSpec& spec) {
  if (spec.numa_binding.empty()) return std::vector<WorkerCpus>();
  const std::vector<int> allowed = allowed_cpus();
  const Topology topology = read_topology("/sys", {allowed.begin(), allowed.end()});
  auto plan = plan_binding(topology, spec.numa_binding, nodes_of_workers(spec, topology));
  if (plan) return plan;
  return make_error(Errc::kInvalidArgument, "--numa-binding {}: {}", spec.numa_binding,
                    plan.error().message);
}

void bind_process(pid_t pid, const std::vector<int>& cpus) {
  const std::vector<unsigned long> mask = cpu_mask(cpus);
  std::error_code error;
  std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", pid), error);
  for (const std::filesystem::directory_iterator end; !error && task != end;
       task.increment(error)) {
    const int thread = std::atoi(task->path().filename().c_str());
    if (thread > 1)
      ::syscall(SYS_sched_setaffinity, thread, mask.size() * sizeof(mask[0]), mask.data());
  }
}

}  // namespace ddp::agent
