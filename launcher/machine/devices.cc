#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include <dirent.h>

#include "common/process/this_process.h"
#include "launcher/machine/machine.h"

namespace ddp::machine {
namespace {

constexpr double kNoQuota = 1e9;

// The number of CPUs that one group's cpu.max allows ("QUOTA PERIOD" or "max PERIOD").
double read_quota(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period && period > 0 ? quota / period : kNoQuota;
}

// The smallest quota of this process's control group (version 2) and the groups above it.
double cgroup_quota() {
  const std::string root = "/sys/fs/cgroup";
  std::ifstream file("/proc/self/cgroup");
  double quota = read_quota(root);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    std::string path = line.substr(3);
    while (path.size() > 1) {
      quota = std::min(quota, read_quota(root + path));
      path.resize(path.rfind('/'));
    }
  }
  return quota;
}

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

int usable_cores() {
  const auto allowed = static_cast<double>(allowed_cpus().size());
  return std::max(1, static_cast<int>(std::min(allowed, std::floor(cgroup_quota()))));
}

std::vector<std::string> visible_devices(const std::string& cuda_visible_devices) {
  std::vector<std::string> names;
  std::istringstream entries(cuda_visible_devices);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::erase_if(entry, [](unsigned char c) { return std::isspace(c) != 0; });
    const bool number = !entry.empty() && std::isdigit(static_cast<unsigned char>(entry[0])) != 0;
    // As in CUDA, the first entry that names no device ends the list.
    if (!number && !entry.starts_with("GPU-") && !entry.starts_with("MIG-")) break;
    names.push_back(entry);
  }
  return names;
}

int count_visible_devices(const std::string& cuda_visible_devices) {
  return static_cast<int>(visible_devices(cuda_visible_devices).size());
}

std::vector<std::string> cuda_device_names(const GetEnvironment& environment) {
  if (const char* visible = environment("CUDA_VISIBLE_DEVICES")) return visible_devices(visible);
  std::vector<std::string> names;
  for (int i = 0; i < cuda_devices(environment); ++i) names.push_back(std::to_string(i));
  return names;
}

int cuda_devices(const GetEnvironment& environment, const std::string& root) {
  if (const char* visible = environment("CUDA_VISIBLE_DEVICES"))
    return count_visible_devices(visible);
  const std::unique_ptr<DIR, CloseDir> dir(::opendir((root + "/dev").c_str()));
  if (!dir) return 0;
  int count = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    std::string_view name(entry->d_name);
    if (!name.starts_with("nvidia")) continue;
    name.remove_prefix(6);
    if (!name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos) ++count;
  }
  return count;
}

}  // namespace ddp::machine
