#include "common/process/descendants.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>

#include "common/base/unique_fd.h"
#include "common/wait/deadline.h"

namespace ddp {
namespace {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';
  unsigned long long start_time = 0;  // Tells a process from a later one with the same number.
};

// A family that grows all the time never gives the same list twice.
constexpr int kMostReads = 8;

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

// The field of /proc/PID/stat that is `index` fields after the command's closing parenthesis.
std::string_view field_after_command(std::string_view text, int index) {
  for (; index > 0; --index) {
    const auto space = text.find(' ');
    if (space == std::string_view::npos) return {};
    text.remove_prefix(space + 1);
  }
  return text.substr(0, text.find(' '));
}

// Empty if there is no such process, or no longer.
std::optional<Process> read_process(int proc_fd, const char* name) {
  Process process;
  const char* const end = name + std::strlen(name);
  if (const auto [rest, error] = std::from_chars(name, end, process.pid);
      error != std::errc() || rest != end) {
    return std::nullopt;
  }
  char path[32];
  std::snprintf(path, sizeof(path), "%d/stat", process.pid);
  const UniqueFd fd(::openat(proc_fd, path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  char buffer[1024];
  const ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
  if (size <= 0) return std::nullopt;
  std::string_view text(buffer, static_cast<std::size_t>(size));
  // The command may hold spaces and parentheses itself; the last one closes it.
  const auto close = text.rfind(')');
  if (close == std::string_view::npos || close + 2 >= text.size()) return std::nullopt;
  text.remove_prefix(close + 2);
  process.state = text.front();
  const std::string_view parent = field_after_command(text, 1);
  const std::string_view start = field_after_command(text, 19);
  std::from_chars(parent.data(), parent.data() + parent.size(), process.parent);
  std::from_chars(start.data(), start.data() + start.size(), process.start_time);
  return process;
}

using OpenDir = std::unique_ptr<DIR, CloseDir>;

OpenDir open_dir(int proc_fd, const char* path) {
  return OpenDir(::fdopendir(::openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
}

// Adds the numbers in /proc/PID/task/TID/children. False if there is no such file.
bool read_children(int proc_fd, const std::string& path, std::vector<std::string>& names) {
  const UniqueFd fd(::openat(proc_fd, path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  std::string text;
  char buffer[4096];
  for (ssize_t size = 1; size > 0;) {
    size = ::read(fd.get(), buffer, sizeof(buffer));
    if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
  }
  for (std::size_t begin = 0, end = 0; (end = text.find(' ', begin)) != std::string::npos;
       begin = end + 1) {
    names.push_back(text.substr(begin, end - begin));
  }
  return true;
}

std::vector<Process> children_of(pid_t parent, int proc_fd) {
  std::vector<std::string> names;
  const std::string tasks = std::to_string(parent) + "/task";
  if (const OpenDir dir = open_dir(proc_fd, tasks.c_str())) {
    while (const dirent* entry = ::readdir(dir.get())) {
      if (entry->d_name[0] != '.')
        read_children(proc_fd, tasks + "/" + entry->d_name + "/children", names);
    }
  }
  std::vector<Process> children;
  for (const std::string& name : names) {
    if (const auto process = read_process(proc_fd, name.c_str())) children.push_back(*process);
  }
  return children;
}

std::vector<Process> all_processes(int proc_fd) {
  std::vector<Process> all;
  if (const OpenDir dir = open_dir(proc_fd, ".")) {
    while (const dirent* entry = ::readdir(dir.get())) {
      if (const auto process = read_process(proc_fd, entry->d_name)) all.push_back(*process);
    }
  }
  return all;
}

// children(PID) gives the processes whose parent that is, and may give others.
template <typename Children>
std::vector<Process> descend(pid_t root, const std::vector<pid_t>& keep, const Children& children) {
  std::vector<Process> found;
  std::vector<pid_t> parents{root};
  for (std::size_t next = 0; next < parents.size(); ++next) {
    const pid_t parent = parents[next];
    for (const Process& process : children(parent)) {
      if (process.parent != parent) continue;
      if (std::find(keep.begin(), keep.end(), process.pid) != keep.end()) continue;
      found.push_back(process);
      parents.push_back(process.pid);
    }
  }
  return found;
}

// Parents stand before their children. If the kernel lists the children of each process
// (CONFIG_PROC_CHILDREN), the time does not depend on how many processes the machine has: a
// thousand agents on one machine would otherwise read a million files at the end of a round. Such a
// list may lack a process if another one ends meanwhile, so it counts when it comes twice.
std::vector<Process> descendants_of(pid_t root, const std::vector<pid_t>& keep, int proc_fd) {
  std::vector<std::string> own;
  if (!read_children(proc_fd, "thread-self/children", own)) {
    const std::vector<Process> all = all_processes(proc_fd);
    return descend(root, keep, [&all](pid_t) { return std::span(all); });
  }
  const auto list = [&] {
    return descend(root, keep, [proc_fd](pid_t parent) { return children_of(parent, proc_fd); });
  };
  const auto same = [](const Process& one, const Process& other) { return one.pid == other.pid; };
  std::vector<Process> now = list();
  for (int reads = 1; reads < kMostReads; ++reads) {
    const std::vector<Process> before = std::exchange(now, list());
    if (std::equal(before.begin(), before.end(), now.begin(), now.end(), same)) break;
  }
  return now;
}

// The descriptor becomes readable when the process has ended. Signals through it cannot reach a
// stranger that got the number in the meantime.
UniqueFd kill_process(const Process& process, int proc_fd) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd) return pidfd;
  char name[16];
  std::snprintf(name, sizeof(name), "%d", process.pid);
  const auto now = read_process(proc_fd, name);
  if (!now || now->start_time != process.start_time) return UniqueFd();
  ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  return pidfd;
}

bool has_children() {
  siginfo_t info;
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

// False for zombies: they have no environment.
bool has_in_environment(pid_t pid, std::string_view entry, int proc_fd) {
  char path[32];
  std::snprintf(path, sizeof(path), "%d/environ", pid);
  const UniqueFd fd(::openat(proc_fd, path, O_RDONLY | O_CLOEXEC));
  std::string text(1, '\0');  // Entries end with NUL; the first has none before it.
  char buffer[16 * 1024];
  for (ssize_t size = 1; fd && size > 0;) {
    size = ::read(fd.get(), buffer, sizeof(buffer));
    if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
  }
  return text.find('\0' + std::string(entry) + '\0') != std::string::npos;
}

}  // namespace

std::vector<pid_t> descendants_with(std::string_view entry) {
  std::vector<pid_t> found;
  if (!has_children()) return found;
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const Process& process : descendants_of(::getpid(), {}, proc.get())) {
    if (has_in_environment(process.pid, entry, proc.get())) found.push_back(process.pid);
  }
  return found;
}

pid_t ended_child() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? info.si_pid : 0;
}

std::vector<pid_t> living_children(const std::vector<pid_t>& keep) {
  std::vector<pid_t> found;
  if (!has_children()) return found;
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const Process& process : descendants_of(::getpid(), keep, proc.get())) {
    if (process.parent == ::getpid() && process.state != 'Z') found.push_back(process.pid);
  }
  return found;
}

bool kill_descendants(const std::vector<pid_t>& keep, Duration limit) {
  // A subreaper without children has no descendants; this saves reading all of /proc.
  if (!has_children()) return true;
  const TimePoint deadline = Clock::now() + limit;
  const pid_t self = ::getpid();
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (;;) {
    const std::vector<Process> alive = descendants_of(self, keep, proc.get());
    if (alive.empty()) return true;
    std::vector<UniqueFd> killed;
    for (const Process& process : alive) {
      if (process.state == 'Z') continue;
      if (UniqueFd pidfd = kill_process(process, proc.get())) killed.push_back(std::move(pidfd));
    }
    for (const UniqueFd& pidfd : killed) {
      pollfd wait{pidfd.get(), POLLIN, 0};
      ::poll(&wait, 1, milliseconds_until(deadline));
    }
    bool reaped = false;
    for (const Process& process : alive) {
      if (process.parent == self && ::waitpid(process.pid, nullptr, WNOHANG) > 0) reaped = true;
    }
    if (!has_children()) return true;
    if (Clock::now() >= deadline) return descendants_of(self, keep, proc.get()).empty();
    // Only zombies of other parents were found. They become ours as soon as those parents have
    // ended.
    if (killed.empty() && !reaped) ::poll(nullptr, 0, 1);
  }
}

}  // namespace ddp
