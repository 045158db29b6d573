#include "agent/process/spawn_program.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include <sched.h>

#include "agent/process/cpu_topology.h"
#include "common/base/check.h"
#include "common/base/exit_codes.h"
#include "common/process/all_signals_blocked.h"
#include "common/process/descriptor_limit.h"

// clone(2) by its other name in glibc. ThreadSanitizer takes a call of clone() for a fork, and
// would believe that this process, whose memory the child uses, is a child that has lost its
// threads.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument,
                       ...);  // NOLINT

namespace ddp::agent {
namespace {

// Until it executes the program, the child runs in the parent's memory while the parent waits
// (CLONE_VFORK). So a start costs the same however large the parent is, and errno comes back
// through plain memory.
struct ChildArguments {
  const char* file = nullptr;
  char** argv = nullptr;
  char** envp = nullptr;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  const int* inherited = nullptr;
  std::size_t inherited_count = 0;
  const unsigned long* cpu_mask = nullptr;
  std::size_t cpu_mask_bytes = 0;
  pid_t parent = 0;
  pid_t tracer = 0;
  bool detached = false;
  bool shares_descriptors = false;
  unsigned kept_back = 0;  // It then gets no descriptors from here on.
  rlimit descriptors{};
  const char* failed_step = nullptr;
  int error = 0;
};

constexpr int kLastSignal = 64;
constexpr std::size_t kKernelSigsetBytes = 8;
constexpr std::size_t kChildStackBytes = 256 * 1024;

// dup2 leaves close-on-exec alone when both numbers are the same.
bool move_fd(int from, int to) {
  return from == to ? ::fcntl(to, F_SETFD, 0) == 0 : ::dup2(from, to) == to;
}

// Makes the system calls directly, because sanitizers keep tables about the library's wrappers, and
// the memory is the parent's.
void reset_signals() {
  alignas(16) const unsigned char all_default[64] = {};  // SIG_DFL, no flags, empty mask.
  for (int number = 1; number <= kLastSignal; ++number) {
    ::syscall(SYS_rt_sigaction, number, all_default, nullptr, kKernelSigsetBytes);
  }
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, all_default, nullptr, kKernelSigsetBytes);
}

void ignore_requests_to_end() {
  alignas(16) unsigned char ignore[64] = {};  // After the handler: no flags, empty mask.
  const auto handler = reinterpret_cast<std::uintptr_t>(SIG_IGN);
  __builtin_memcpy(ignore, &handler, sizeof(handler));
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
    ::syscall(SYS_rt_sigaction, number, ignore, nullptr, kKernelSigsetBytes);
  }
}

// Returns the first failing step, or does not return. Sanitizers know neither this stack nor that
// a function ends by exec.
[[gnu::no_sanitize_address, gnu::no_sanitize_thread]] const char* become_program(
    const ChildArguments& child) {
  // Until now it uses the parent's table of descriptors. It gets copies of those below.
  if (child.shares_descriptors &&
      ::syscall(SYS_close_range, child.kept_back, ~0U, CLOSE_RANGE_UNSHARE) != 0)
    return "close_range(CLOSE_RANGE_UNSHARE)";
  if (!child.detached && ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return "prctl(PR_SET_PDEATHSIG)";
  // A parent that died before prctl sends no signal.
  if (!child.detached && ::getppid() != child.parent) ::_exit(kExitSignalBase + SIGKILL);
  // Yama may limit ptrace to ancestors, but our helper that reads a hung worker's stacks is not
  // one.
  ::prctl(PR_SET_PTRACER, child.tracer);
  if (::setsid() < 0) return "setsid";
  if (!move_fd(child.stdin_fd, 0) || !move_fd(child.stdout_fd, 1) || !move_fd(child.stderr_fd, 2))
    return "dup2";
  // Kernels before 5.11 refuse the flag, but descriptors of this process are close-on-exec anyway.
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  for (std::size_t i = 0; i < child.inherited_count; ++i) {
    if (::fcntl(child.inherited[i], F_SETFD, 0) != 0) return "fcntl(F_SETFD)";
  }
  if (child.cpu_mask_bytes > 0 &&
      ::syscall(SYS_sched_setaffinity, 0, child.cpu_mask_bytes, child.cpu_mask) != 0) {
    return "sched_setaffinity";
  }
  if (::setrlimit(RLIMIT_NOFILE, &child.descriptors) != 0) return "setrlimit";
  reset_signals();
  if (child.detached) ignore_requests_to_end();
  ::execvpe(child.file, child.argv, child.envp);
  return "execvpe";
}

[[gnu::no_sanitize_address, gnu::no_sanitize_thread]] int child_main(void* argument) {
  auto& child = *static_cast<ChildArguments*>(argument);
  child.failed_step = become_program(child);
  child.error = errno;
  ::_exit(kExitNotFound);
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The interpreter that a script's first line names; empty if the program is no script.
std::string interpreter_of(const std::string& program) {
  std::string line;
  std::getline(std::ifstream(program), line);
  if (!line.starts_with("#!")) return {};
  const auto begin = std::min(line.find_first_not_of(" \t", 2), line.size());
  return line.substr(begin, line.find_first_of(" \t", begin) - begin);
}

Error interpreter_missing(const std::string& program) {
  std::string interpreter = interpreter_of(program);
  if (interpreter.empty()) {
    return make_error(
        Errc::kInvalidArgument,
        "{}: cannot be executed: the loader that it is linked for does not exist; was "
        "it built for another system?",
        program);
  }
  if (interpreter.ends_with('\r')) {
    interpreter.pop_back();
    return make_error(Errc::kInvalidArgument,
                      "{}: cannot be executed: its lines end as on Windows, so its interpreter is "
                      "\"{}\\r\", which does not exist; mend it with: sed -i 's/\\r$//' {}",
                      program, interpreter, program);
  }
  return make_error(Errc::kInvalidArgument,
                    "{}: cannot be executed: the interpreter that its first line names, {}, does "
                    "not exist",
                    program, interpreter);
}

Error program_error(const std::string& program, int error_number) {
  const std::string reason = std::generic_category().message(error_number);
  const bool is_path = program.find('/') != std::string::npos;
  if (error_number == ENOENT || error_number == ENOTDIR) {
    if (is_path && ::access(program.c_str(), F_OK) == 0) return interpreter_missing(program);
    return is_path ? make_error(Errc::kNotFound, "{}: no such program", program)
                   : make_error(Errc::kNotFound,
                                "{}: no such program in PATH; give its path if it is elsewhere",
                                program);
  }
  if (error_number == E2BIG) {
    return make_error(
        Errc::kIo, "{}: its arguments and environment are longer than the system allows", program);
  }
  if (error_number == EAGAIN || error_number == ENOMEM || error_number == EMFILE ||
      error_number == ENFILE) {
    return make_error(Errc::kIo, "{}: cannot be started: {}", program, reason);
  }
  return make_error(Errc::kInvalidArgument, "{}: cannot be executed: {}{}", program, reason,
                    error_number == EACCES ? "; is it executable (chmod +x)?" : "");
}

// Linux before 5.11 and some containers do not have it.
bool has_close_range() {
  static const bool has = ::syscall(SYS_close_range, ~0U, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
  return has;
}

// A process with very many descriptors may have to pass some of those on.
unsigned first_kept_back(const ChildArguments& child) {
  int highest = std::max({child.stdin_fd, child.stdout_fd, child.stderr_fd});
  for (std::size_t i = 0; i < child.inherited_count; ++i)
    highest = std::max(highest, child.inherited[i]);
  return static_cast<unsigned>(std::max(highest + 1, kKeptBack));
}

struct Stack {
  explicit Stack(std::size_t size) : bytes(size) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  }
  ~Stack() {
    if (base != MAP_FAILED) ::munmap(base, bytes);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  void* base = MAP_FAILED;
  std::size_t bytes = 0;
};

}  // namespace

Result<SpawnedProcess> spawn(const SpawnRequest& request) {
  DDP_CHECK(!request.command.empty());
  const std::string& program = request.command.front();
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return make_error(Errc::kIo, "/dev/null: {}", std::generic_category().message(errno));
  std::vector<char*> argv = pointers_to(request.command);
  std::vector<char*> envp = pointers_to(request.environment);
  // execvpe copies argv onto its stack when it hands a script without a "#!" line to /bin/sh.
  const Stack stack(kChildStackBytes + argv.size() * sizeof(char*));
  if (stack.base == MAP_FAILED) return program_error(program, ENOMEM);

  ChildArguments child;
  child.file = program.c_str();
  child.argv = argv.data();
  child.envp = envp.data();
  child.stdin_fd = request.stdin_fd >= 0 ? request.stdin_fd : null.get();
  child.stdout_fd = request.stdout_fd;
  child.stderr_fd = request.stderr_fd;
  child.inherited = request.inherited_fds.data();
  child.inherited_count = request.inherited_fds.size();
  child.shares_descriptors = has_close_range();
  child.kept_back = first_kept_back(child);
  const std::vector<unsigned long> mask = cpu_mask(request.cpus);
  child.cpu_mask = mask.data();
  child.cpu_mask_bytes = mask.size() * sizeof(unsigned long);
  child.parent = ::getpid();
  child.tracer = request.tracer > 0 ? request.tracer : child.parent;
  child.detached = request.detached;
  child.descriptors = descriptor_limit_at_start();

  int pidfd = -1;
  pid_t pid = -1;
  int clone_error = 0;
  const int shared = child.shares_descriptors ? CLONE_FILES : 0;
  {
    const AllSignalsBlocked blocked;  // Our handlers must not run in the child, in our memory.
    pid = ::__clone(child_main, static_cast<char*>(stack.base) + stack.bytes / 16 * 16,
                    CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD | shared, &child, &pidfd);
    clone_error = errno;
  }
  if (pid < 0) return program_error(program, clone_error);

  SpawnedProcess process{pid, UniqueFd(pidfd)};
  if (child.failed_step == nullptr) return process;
  ::waitpid(pid, nullptr, 0);
  if (std::string_view(child.failed_step) == "execvpe") return program_error(program, child.error);
  return make_error(Errc::kIo, "{}: cannot be started: {}: {}", program, child.failed_step,
                    std::generic_category().message(child.error));
}

UniqueFd keep_back(UniqueFd fd) {
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kKeptBack));
  return moved ? std::move(moved) : std::move(fd);
}

int spawn_failure_status(const Error& error) {
  if (error.code == Errc::kNotFound) return kExitNotFound;
  if (error.code == Errc::kInvalidArgument) return kExitNotExecutable;
  return kExitInternal;
}

Errc spawn_failure_code(int status) {
  if (status == kExitNotFound) return Errc::kNotFound;
  if (status == kExitNotExecutable) return Errc::kInvalidArgument;
  return Errc::kIo;
}

}  // namespace ddp::agent
