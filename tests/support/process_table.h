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

// Live processes whose environment has `entry` (NAME=VALUE). If a job was started with it, these
// are all processes of the job, whatever their parents are now. Zombies have no environment and are
// not included.
inline std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return found;
  while (const dirent* item = ::readdir(dir)) {
    const pid_t pid = std::atoi(item->d_name);
    if (pid <= 0) continue;
    // Entries end with NUL, and there is none before the first entry.
    const std::string environment = '\0' + read_proc(pid, "environ");
    if (environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(pid);
  }
  ::closedir(dir);
  return found;
}

// The kernel's name of the process, at most 15 characters.
inline std::string process_name(pid_t pid) {
  std::string name = read_proc(pid, "comm");
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

// The executable file of the process; for a script, the interpreter. Empty if it has ended.
inline std::filesystem::path program_file(pid_t pid) {
  std::error_code ended;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ended);
}

}  // namespace ddp::test
