#include "launcher/check/local_probe.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "common/base/host_name.h"
#include "common/process/descriptor_limit.h"
#include "common/process/memory_cgroup.h"
#include "common/wire/shm_file.h"
#include "common/wire/shm_layout.h"
#include "launcher/check/folder_probe.h"
#include "launcher/check/name_service.h"
#include "launcher/check/nvml_probe.h"

namespace ddp::check {
namespace {

constexpr const char* kShm = "/dev/shm";
// Below it, a device has a folder.
constexpr const char* kRdmaDevices = "/sys/class/infiniband";

std::int64_t number_of(rlim_t limit) {
  return limit > static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max())
             ? -1
             : static_cast<std::int64_t>(limit);
}

void probe_shm(LocalFacts& facts) {
  struct statvfs status {};
  if (::statvfs(kShm, &status) != 0) {
    facts.shm_error = std::strerror(errno);
  } else if (::access(kShm, W_OK) != 0) {
    facts.shm_error = std::string("not writable: ") + std::strerror(errno);
  } else {
    facts.shm_free = static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
  }
}

// What /proc/meminfo says that new programs can have; 0 if it does not.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1'024;
  }
  return 0;
}

// The smallest of what the machine has left, what the control groups allow and what RLIMIT_AS
// allows each worker.
void probe_memory(LocalFacts& facts) {
  facts.memory = available_memory();
  facts.memory_source = "what this machine has left";
  if (const auto group = own_memory_cgroup()) {
    const auto limit = tightest_limit(*group);
    if (limit && limit->bytes < facts.memory) {
      facts.memory = limit->bytes;
      facts.memory_source = std::string(group->limit_file()) + " of " + limit->folder;
    }
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.locked_memory = number_of(limit.rlim_cur);
  std::error_code error;
  facts.has_rdma = std::filesystem::exists(kRdmaDevices, error) &&
                   !std::filesystem::is_empty(kRdmaDevices, error);
}

// The memory that the agent makes for the workers of a round. Its pages are not touched, so it
// costs nothing.
void probe_shared_memory(LocalFacts& facts) {
  // A limit on the size of files, which counts here, is an error and must not end this process.
  const auto former = ::signal(SIGXFSZ, SIG_IGN);
  const auto file = wire::make_shm_file(facts.workers, 0);
  ::signal(SIGXFSZ, former);
  if (!file) {
    facts.memfd_error = file.error().message;
    return;
  }
  const std::size_t size = wire::shm_bytes(facts.workers);
  void* bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (bytes == MAP_FAILED) {
    facts.memfd_error = std::string("cannot be mapped: ") + std::strerror(errno);
    return;
  }
  ::munmap(bytes, size);
}

}  // namespace

LocalFacts probe_node(const Subject& subject) {
  LocalFacts facts;
  facts.host = subject.host;
  facts.workers = subject.workers;
  facts.world_size = subject.world_size;
  facts.nodes = subject.nodes;
  const rlimit files = descriptor_limit_at_start();
  facts.soft_files = number_of(files.rlim_cur);
  facts.hard_files = number_of(files.rlim_max);
  probe_shm(facts);
  probe_memory(facts);
  probe_shared_memory(facts);
  Lookup name = look_up(host_name());
  facts.name_error = std::move(name.error);
  facts.name_addresses = std::move(name.addresses);
  facts.name_ms = name.ms;
  if (!subject.check_dir.empty()) facts.folder = probe_folder(subject.check_dir);
  probe_gpus(facts);
  return facts;
}

}  // namespace ddp::check
