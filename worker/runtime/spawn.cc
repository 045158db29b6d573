#include "worker/runtime/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/signal_name.h"
#include "common/base/unique_fd.h"
#include "common/wire/shm_file.h"
#include "worker/runtime/store_daemon.h"

namespace ddp {
namespace {

constexpr int kMostProcesses = 256;
constexpr Duration kStoreLimit{10'000};
constexpr int kRaised = 1;  // The status of a child whose function has thrown.

class Child {
 public:
  Child(Rank rank, pid_t pid, UniqueFd pidfd, UniqueFd text)
      : rank_(rank), pid_(pid), pidfd_(std::move(pidfd)), text_(std::move(text)) {}

  int pidfd() const { return pidfd_.get(); }
  void signal(int number) const {
    if (pid_ > 1) ::kill(pid_, number);
  }

  // Waits for the child to end. Returns the error, if it did not end well.
  std::optional<ProcessError> reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
      return ProcessError(
          fmt::format("process {} was ended by {}", rank_, signal_name(WTERMSIG(status))), rank_, 0,
          WTERMSIG(status));
    }
    const int code = WEXITSTATUS(status);
    if (code == 0) return std::nullopt;
    const std::string said = text();
    return ProcessError(said.empty() ? fmt::format("process {} ended with status {}", rank_, code)
                                     : fmt::format("process {} failed: {}", rank_, said),
                        rank_, code, 0);
  }

 private:
  // The text of its exception, which it writes before it ends.
  std::string text() const {
    std::string all;
    std::array<char, 4096> part{};
    for (ssize_t count = 0; (count = ::read(text_.get(), part.data(), part.size())) > 0;)
      all.append(part.data(), static_cast<std::size_t>(count));
    return all;
  }

  Rank rank_;
  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd text_;
};

struct Surroundings {
  UniqueFd memory;
  int port = 0;
  int nprocs = 0;
};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void take_place(const Surroundings& around, Rank rank) {
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) set(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
    set(name, std::to_string(around.nprocs));
  set("GROUP_RANK", "0");
  set("GROUP_WORLD_SIZE", "1");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(around.port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  set("TORCHELASTIC_RUN_ID", fmt::format("spawn-{}", ::getppid()));
  set("DDP_ROUND", "0");
  set("DDP_SHM_FD", std::to_string(around.memory.get()));
  // These belong to a job in which this process itself is a worker.
  for (const char* name : {"DDP_CONTROL_FD", "DDP_VIRTUAL_NODE", "DDP_STANDBY"}) ::unsetenv(name);
}

[[noreturn]] void run_child(const std::function<void(Rank)>& fn, Rank rank, int text) {
  int status = 0;
  std::string said;
  try {
    fn(rank);
  } catch (const std::exception& error) {
    said = error.what();
    status = kRaised;
  } catch (...) {
    said = "an exception that is not a std::exception";
    status = kRaised;
  }
  std::cout.flush();
  std::fflush(nullptr);
  if (said.size() > 32'000) said.resize(32'000);  // Fits into the pipe.
  [[maybe_unused]] const ssize_t written = ::write(text, said.data(), said.size());
  ::_exit(status);
}

Child start(const std::function<void(Rank)>& fn, Rank rank, const Surroundings& around) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "spawn: cannot make a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "spawn: cannot fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kRaised);  // The parent died before prctl().
    take_place(around, rank);
    run_child(fn, rank, write_end.get());
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return {rank, pid, std::move(pidfd), std::move(read_end)};
}

// Waits until a child has ended and returns its index; nothing at the deadline.
std::optional<std::size_t> wait_for_one(const std::vector<Child>& children,
                                        std::optional<TimePoint> deadline) {
  std::vector<pollfd> items;
  for (const Child& child : children) items.push_back({child.pidfd(), POLLIN, 0});
  for (;;) {
    int left = -1;
    if (deadline) {
      const auto rest = std::chrono::ceil<Duration>(*deadline - Clock::now()).count();
      left = static_cast<int>(std::max<Duration::rep>(rest, 0));
    }
    const int ready = ::poll(items.data(), items.size(), left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    const auto ended = std::find_if(items.begin(), items.end(),
                                    [](const pollfd& item) { return item.revents != 0; });
    return static_cast<std::size_t>(ended - items.begin());
  }
}

// Ends the remaining children: SIGTERM first, SIGKILL after `grace`.
void end_all(std::vector<Child>& children, std::chrono::milliseconds grace) {
  for (const Child& child : children) child.signal(SIGTERM);
  const TimePoint deadline = Clock::now() + grace;
  while (!children.empty()) {
    const auto ended = wait_for_one(children, deadline);
    if (!ended) break;
    children[*ended].reap();
    children.erase(children.begin() + static_cast<std::ptrdiff_t>(*ended));
  }
  for (Child& child : children) {
    child.signal(SIGKILL);
    child.reap();
  }
  children.clear();
}

std::ptrdiff_t count_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

// Forks a child that does nothing, because libraries that handle forks (pthread_atfork) end their
// threads for it. OpenBLAS does; its threads start as soon as it is loaded.
void end_threads_by_fork() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  if (child > 0) ::waitpid(child, nullptr, 0);
}

void check_threads() {
  if (count_threads() == 1) return;
  end_threads_by_fork();
  constexpr int kTries = 100;
  std::ptrdiff_t threads = count_threads();
  for (int i = 0; i < kTries && threads > 1; ++i) {
    // sleep: a joined thread stays in the list for a moment, and nothing tells when it leaves.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    threads = count_threads();
  }
  if (threads == 1) return;
  throw std::logic_error(
      fmt::format("spawn: this process has {} threads, but only the calling thread would exist in "
                  "the children; call spawn at the start of main(), before LibTorch computes "
                  "anything",
                  threads));
}

}  // namespace

void spawn(const std::function<void(Rank)>& fn, int nprocs, const SpawnOptions& options) {
  if (nprocs < 1 || nprocs > kMostProcesses) {
    throw std::invalid_argument(
        fmt::format("spawn: nprocs is {}; expected 1 to {}", nprocs, kMostProcesses));
  }
  check_threads();
  Surroundings around;
  around.nprocs = nprocs;
  auto store = runtime::ServedStore::start(Clock::now() + kStoreLimit);
  if (!store) throw std::runtime_error("spawn: " + store.error().message);
  around.port = store->port();
  auto memory = wire::make_shm_file(nprocs, 0);
  if (!memory) throw std::runtime_error("spawn: " + memory.error().message);
  around.memory = std::move(*memory);
  // Otherwise each child would write what is buffered now.
  std::cout.flush();
  std::fflush(nullptr);
  std::vector<Child> children;
  try {
    for (Rank rank = 0; rank < nprocs; ++rank) children.push_back(start(fn, rank, around));
  } catch (...) {
    end_all(children, std::chrono::milliseconds(0));
    throw;
  }
  while (!children.empty()) {
    const std::size_t ended = *wait_for_one(children, std::nullopt);
    const auto failure = children[ended].reap();
    children.erase(children.begin() + static_cast<std::ptrdiff_t>(ended));
    if (!failure) continue;
    end_all(children, options.grace);
    throw *failure;
  }
}

}  // namespace ddp
