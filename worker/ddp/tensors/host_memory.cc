#include "worker/ddp/tensors/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "worker/runtime/worker_environment.h"

namespace ddp {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// Of "MemAvailable:  123 kB".
std::uint64_t available_to_all() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kilobytes = 0;
    if (name == "MemAvailable:" && file >> kilobytes) return kilobytes << 10;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kNoLimit;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::uint64_t number = 0;
  if (std::ifstream(path) >> number) return number;  // "max" is none.
  return std::nullopt;
}

// What memory.stat counts as page cache that nobody uses: the kernel takes it back before it
// refuses anything.
std::uint64_t idle_cache(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::uint64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == "inactive_file") return value;
  }
  return 0;
}

// Of this process's control groups, version 2, the tightest.
std::uint64_t left_by_groups() {
  std::ifstream file("/proc/self/cgroup");
  std::string own;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) own = line.substr(3);
  }
  std::uint64_t left = kNoLimit;
  while (!own.empty()) {
    const std::string folder = "/sys/fs/cgroup" + own;
    const auto limit = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (limit && used) {
      const std::uint64_t firm = *used - std::min(*used, idle_cache(folder));
      left = std::min(left, *limit - std::min(*limit, firm));
    }
    own.resize(own.rfind('/'));
  }
  return left;
}

}  // namespace

Result<void> check_host_memory(std::uint64_t bytes) {
  const std::string text = process_variable("LOCAL_WORLD_SIZE").value_or("1");
  std::uint64_t workers = 1;
  if (text.size() < 6 && text.find_first_not_of("0123456789") == std::string::npos) {
    workers = std::max<std::uint64_t>(1, std::strtoull(text.c_str(), nullptr, 10));
  }
  const std::uint64_t available = std::min(available_to_all(), left_by_groups());
  // Some stays for what training itself takes.
  if (available == kNoLimit || bytes <= available / 10 * 9 / workers) return {};
  return make_error(Errc::kIo,
                    "the snapshot takes {} bytes, and {} are available to the {} workers here",
                    bytes, available, workers);
}

}  // namespace ddp
