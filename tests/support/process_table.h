#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <dirent.h>

namespace ddp::test {

inline std::string read_proc(pid_t pid, const std::string& file) {
  std::ostringstream text;
  text << std::ifstream("/proc/" + std::to_string(pid) + "/" + file, std::ios::binary).rdbuf();
  return text.str();
}

// Live processes whose environment holds NAME=VALUE, given as `entry`: all of a job, wherever they
// have gone, if the job was started with it. Zombies have no environment and are not among them.
inline std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return found;
  while (const dirent* item = ::readdir(dir)) {
    const pid_t pid = std::atoi(item->d_name);
    if (pid <= 0) continue;
    // Entries end with NUL; the first has none before it.
    const std::string environment = '\0' + read_proc(pid, "environ");
    if (environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(pid);
  }
  ::closedir(dir);
  return found;
}

// The program's name as the kernel has it, at most 15 characters.
inline std::string process_name(pid_t pid) {
  std::string name = read_proc(pid, "comm");
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

// The file whose program it runs; of a script, its interpreter's. Empty: it has ended.
inline std::filesystem::path program_file(pid_t pid) {
  std::error_code ended;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ended);
}

}  // namespace ddp::test
