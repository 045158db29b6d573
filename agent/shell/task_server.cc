#include "agent/shell/task_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/process/spawn_program.h"
#include "agent/process/task_hosts.h"
#include "common/base/exit_codes.h"
#include "common/base/unique_fd.h"
#include "common/process/abstract_socket.h"
#include "common/process/descendants.h"
#include "common/process/descriptor_passing.h"
#include "common/process/this_process.h"
#include "common/process/user_gate.h"
#include "common/wire/frame.h"
#include "common/wire/task_messages.h"

namespace ddp::agent {
namespace {

constexpr int kConnectPauseMs = 20;
constexpr std::size_t kStartDescriptors = 4;

// The connection to one agent, and the worker that it has ordered.
class TaskSession {
 public:
  TaskSession(UniqueFd socket, int child_events)
      : socket_(std::move(socket)), child_events_(child_events) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) tracer_ = peer.pid;
  }

  // Serves until the connection ends. Returns the job's exit status if it was told.
  std::optional<int> serve(int local_rank) {
    send(wire::TaskHello{local_rank, allowed_cpus(), own_environment()});
    while (open_ && !dismissed_) {
      std::array<pollfd, 2> items{pollfd{socket_.get(), POLLIN, 0},
                                  pollfd{child_events_, POLLIN, 0}};
      if (::poll(items.data(), items.size(), -1) < 0 && errno != EINTR) break;
      if (items[1].revents != 0) tell_ended();
      if (items[0].revents != 0) read();
    }
    return dismissed_;
  }

 private:
  void send(const wire::TaskMessage& message, std::vector<UniqueFd> descriptors = {}) {
    const std::string frame = wire::encode_frame(wire::encode(message));
    std::string_view rest = frame;
    while (open_ && !rest.empty()) {
      const ssize_t sent = send_with_descriptors(socket_.get(), rest, descriptors);
      if (sent > 0) {
        rest.remove_prefix(static_cast<std::size_t>(sent));
        descriptors.clear();
      } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        pollfd item{socket_.get(), POLLOUT, 0};
        ::poll(&item, 1, -1);
      } else if (sent == 0 || errno != EINTR) {
        open_ = false;
      }
    }
  }

  void read() {
    std::array<char, 16 * 1024> buffer;
    const ssize_t size = receive_with_descriptors(socket_.get(), buffer, received_);
    if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size <= 0) {
      open_ = false;
      return;
    }
    decoder_.append({buffer.data(), static_cast<std::size_t>(size)});
    while (open_) {
      const auto frame = decoder_.next();
      if (frame && !*frame) return;
      const auto message =
          frame ? wire::decode_task_message(**frame) : Result<wire::TaskMessage>(frame.error());
      if (!message) {
        open_ = false;
        return;
      }
      handle(*message);
    }
  }

  void handle(const wire::TaskMessage& message) {
    if (const auto* order = std::get_if<wire::StartWorker>(&message)) start(*order);
    if (const auto* order = std::get_if<wire::ClearTask>(&message)) clear(*order);
    if (const auto* order = std::get_if<wire::Dismiss>(&message)) dismissed_ = order->exit_code;
    if (const auto* order = std::get_if<wire::TakeStatus>(&message)) {
      if (told_.erase(order->pid) > 0) ::waitpid(order->pid, nullptr, WNOHANG);
    }
  }

  void start(const wire::StartWorker& order) {
    std::vector<UniqueFd> descriptors = std::exchange(received_, {});
    if (descriptors.size() != kStartDescriptors) {
      return send(wire::WorkerNotStarted{
          kExitInternal,
          "descriptors were lost on the way; does the task have room for them "
          "(ulimit -n)?"});
    }
    // No descriptor of this process has numbers this high.
    const UniqueFd control(::dup3(descriptors[2].get(), wire::kTaskControlFd, O_CLOEXEC));
    const UniqueFd memory(::dup3(descriptors[3].get(), wire::kTaskMemoryFd, O_CLOEXEC));
    SpawnRequest request;
    request.command = order.command;
    request.environment = order.environment;
    request.stdin_fd = STDIN_FILENO;
    request.stdout_fd = descriptors[0].get();
    request.stderr_fd = descriptors[1].get();
    request.inherited_fds = {wire::kTaskControlFd, wire::kTaskMemoryFd};
    request.tracer = tracer_;
    auto process = spawn(request);
    if (!process) {
      return send(
          wire::WorkerNotStarted{spawn_failure_status(process.error()), process.error().message});
    }
    workers_.insert(process->pid);
    std::vector<UniqueFd> pidfd;
    pidfd.push_back(std::move(process->pidfd));
    send(wire::WorkerStarted{process->pid}, std::move(pidfd));
  }

  // Reports workers that have ended, but does not reap them: a worker keeps its pid until the agent
  // has sent TakeStatus. Orphans that workers have left are reaped at once.
  void tell_ended() {
    signalfd_siginfo event{};
    while (::read(child_events_, &event, sizeof(event)) > 0) {
    }
    for (auto worker = workers_.begin(); worker != workers_.end();) {
      siginfo_t info{};
      const bool ended =
          ::waitid(P_PID, static_cast<id_t>(*worker), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == *worker;
      if (!ended) {
        ++worker;
        continue;
      }
      const bool exited = info.si_code == CLD_EXITED;
      send(wire::WorkerEnded{*worker, exited ? info.si_status : 0, exited ? 0 : info.si_status,
                             info.si_code == CLD_DUMPED});
      told_.insert(*worker);
      worker = workers_.erase(worker);
    }
    take_orphans();
  }

  void take_orphans() const {
    // A worker that is not reaped hides children that ended after it. They are found once it is
    // reaped.
    while (const pid_t pid = ended_child()) {
      if (told_.contains(pid) || workers_.contains(pid)) return;
      ::waitpid(pid, nullptr, WNOHANG);
    }
  }

  void clear(const wire::ClearTask& order) {
    tell_ended();
    const std::vector<pid_t> keep(order.keep.begin(), order.keep.end());
    const bool complete = kill_descendants(keep, Duration(std::clamp(order.limit_ms, 0, 60'000)));
    const auto kept = [&keep](pid_t pid) {
      return std::find(keep.begin(), keep.end(), pid) != keep.end();
    };
    std::erase_if(workers_, [&](pid_t pid) { return complete && !kept(pid); });
    std::erase_if(told_, [&](pid_t pid) { return complete && !kept(pid); });
    send(wire::TaskCleared{order.number, complete});
  }

  UniqueFd socket_;
  int child_events_;
  pid_t tracer_ = 0;
  wire::FrameDecoder decoder_;
  std::vector<UniqueFd> received_;
  std::set<pid_t> workers_;  // Those that run.
  std::set<pid_t> told_;     // Those that have ended and are not reaped yet.
  std::optional<int> dismissed_;
  bool open_ = true;
};

// Returns an empty descriptor, with errno, on failure.
UniqueFd connect_to(const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect_abstract(socket.get(), name) != 0) return UniqueFd();
  if (!is_own_users(socket.get())) {
    errno = EACCES;
    return UniqueFd();
  }
  return socket;
}

// Returns the descriptor that reports the ends of children.
UniqueFd prepare_process() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE})
    ::signal(number, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  ::sigprocmask(SIG_SETMASK, &set, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

int serve_task(const TaskOptions& options) {
  const UniqueFd child_events = prepare_process();
  const TimePoint deadline = Clock::now() + options.join_limit;
  for (bool connected = false;;) {
    UniqueFd socket = connect_to(options.socket);
    if (!socket) {
      if (connected) return kExitNodeLost;
      if (errno == EACCES || Clock::now() >= deadline) {
        std::fprintf(stderr, "ddp-run: local rank %d: the first task of this node %s\n",
                     options.local_rank,
                     errno == EACCES ? "cannot be reached: another user has its socket's name"
                                     : "did not come in time (--join-timeout)");
        return kExitJoinTimeout;
      }
      ::poll(nullptr, 0, kConnectPauseMs);
      continue;
    }
    connected = true;
    const auto status =
        TaskSession(std::move(socket), child_events.get()).serve(options.local_rank);
    kill_descendants();
    if (status) return *status;
  }
}

}  // namespace ddp::agent
