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
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <dirent.h>

#include "common/base/unique_fd.h"

namespace ddp {
namespace {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';
  unsigned long long start_time = 0;  // Tells a process from a later one with the same number.
};

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

// Parents stand before their children. /proc/PID/task/TID/children would be shorter, but many
// kernels lack it.
std::vector<Process> descendants_of(pid_t root, const std::vector<pid_t>& keep, int proc_fd) {
  std::vector<Process> all;
  const std::unique_ptr<DIR, CloseDir> dir(::opendir("/proc"));
  if (!dir) return {};
  while (const dirent* entry = ::readdir(dir.get())) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (const auto process = read_process(proc_fd, entry->d_name)) all.push_back(*process);
  }
  std::vector<Process> found;
  std::vector<pid_t> parents{root};
  for (std::size_t next = 0; next < parents.size(); ++next) {
    for (const Process& process : all) {
      if (process.parent != parents[next]) continue;
      if (std::find(keep.begin(), keep.end(), process.pid) != keep.end()) continue;
      found.push_back(process);
      parents.push_back(process.pid);
    }
  }
  return found;
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

int milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<Duration::rep>(left, 0));
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
