#include "common/process/this_process.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace ddp {

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

std::string own_executable() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

std::string program_beside(const std::string& name) {
  const std::filesystem::path own = own_executable();
  return own.empty() ? "" : own.parent_path() / name;
}

std::string clock_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  std::error_code missing;
  const std::filesystem::path space = std::filesystem::read_symlink("/proc/self/ns/time", missing);
  return boot.empty() || missing ? "" : boot + " " + space.string();
}

bool is_ignored(int signal) {
  struct sigaction current {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

std::vector<int> allowed_cpus() {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024> mask{};  // For more CPUs than Linux supports.
  const long bytes = ::syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask.data());
  std::vector<int> cpus;
  for (std::size_t i = 0; bytes > 0 && i < static_cast<std::size_t>(bytes) * CHAR_BIT; ++i) {
    if ((mask[i / kWordBits] >> (i % kWordBits) & 1UL) != 0) cpus.push_back(static_cast<int>(i));
  }
  return cpus;
}

}  // namespace ddp
