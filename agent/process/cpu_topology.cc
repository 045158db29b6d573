#include "agent/process/cpu_topology.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

namespace ddp::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
constexpr int kMaxCpu = 65'535;  // More than Linux supports.

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> read_number(const fs::path& path) {
  const std::string line = read_line(path);
  int value = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || rest == line.data()) return std::nullopt;
  return value;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::map<int, int> nodes_of_cpus(const fs::path& sys) {
  std::map<int, int> nodes;
  for (const fs::path& folder : entries(sys / "devices/system/node")) {
    const std::string name = folder.filename();
    if (!name.starts_with("node") || name.size() == 4 ||
        name.find_first_not_of("0123456789", 4) != std::string::npos) {
      continue;
    }
    const int node = std::atoi(name.c_str() + 4);
    for (const int cpu : parse_cpu_list(read_line(folder / "cpulist"))) nodes[cpu] = node;
  }
  return nodes;
}

int smallest_or(const std::set<int>& cpus, int otherwise) {
  return cpus.empty() ? otherwise : *cpus.begin();
}

int last_level_cache(const fs::path& folder, int cpu) {
  int best_level = 0;
  int cache = cpu;
  for (const fs::path& index : entries(folder / "cache")) {
    const int level = read_number(index / "level").value_or(0);
    if (level <= best_level) continue;
    best_level = level;
    cache = smallest_or(parse_cpu_list(read_line(index / "shared_cpu_list")), cpu);
  }
  return cache;
}

// Display controllers of NVIDIA and AMD; PCI addresses sort as text.
std::vector<int> nodes_of_gpus(const fs::path& sys) {
  std::vector<int> nodes;
  for (const fs::path& device : entries(sys / "bus/pci/devices")) {
    const std::string vendor = read_line(device / "vendor");
    if (!read_line(device / "class").starts_with("0x03")) continue;
    if (vendor != "0x10de" && vendor != "0x1002") continue;
    nodes.push_back(read_number(device / "numa_node").value_or(-1));
  }
  return nodes;
}

}  // namespace

std::set<int> parse_cpu_list(std::string_view text) {
  std::set<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr < end && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || first < 0 || last > kMaxCpu) break;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
    if (read.ptr == end || *read.ptr != ',') break;
    at = read.ptr + 1;
  }
  return cpus;
}

std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (mask.size() <= bit / kWordBits) mask.resize(bit / kWordBits + 1);
    mask[bit / kWordBits] |= 1UL << bit % kWordBits;
  }
  return mask;
}

Topology read_topology(const std::string& sys, const std::set<int>& allowed) {
  const fs::path root(sys);
  const std::map<int, int> nodes = nodes_of_cpus(root);
  Topology topology;
  for (const int number : allowed) {
    const fs::path folder = root / "devices/system/cpu" / ("cpu" + std::to_string(number));
    const auto node = nodes.find(number);
    Cpu cpu;
    cpu.number = number;
    cpu.node = node == nodes.end() ? 0 : node->second;
    cpu.socket = std::max(0, read_number(folder / "topology/physical_package_id").value_or(0));
    cpu.core =
        smallest_or(parse_cpu_list(read_line(folder / "topology/thread_siblings_list")), number);
    cpu.cache = last_level_cache(folder, number);
    topology.cpus.push_back(cpu);
  }
  topology.gpu_nodes = nodes_of_gpus(root);
  return topology;
}

}  // namespace ddp::agent
