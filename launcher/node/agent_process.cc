#include "launcher/node/agent_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/signal_name.h"
#include "common/config/forwarded_signal.h"
#include "common/process/process_end.h"
#include "common/process/spawn_settings.h"
#include "common/process/this_process.h"
#include "common/process/write_file.h"

namespace ddp::node {
namespace {

// Descriptor numbers in the agent.
constexpr int kJobFd = 3;
constexpr int kResultFd = 4;
constexpr int kCoordinatorFd = 5;
constexpr int kTasksFd = 6;

Error system_error(const char* what, int error) {
  return make_error(Errc::kIo, "{}: {}", what, std::generic_category().message(error));
}

// A memfd that holds `text`, positioned at its start.
Result<UniqueFd> memory_file(std::string_view text) {
  UniqueFd fd = moved_up(UniqueFd(::memfd_create("ddp-job", MFD_CLOEXEC)));
  if (!fd) return system_error("memfd_create", errno);
  if (const int error = write_all(fd.get(), text); error != 0)
    return system_error("write the job description", error);
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return system_error("lseek", errno);
  return fd;
}

Result<pid_t> spawn(const std::string& program, int job_fd, int result_fd, int coordinator_fd,
                    int tasks_fd, int checkpoint_signal) {
  SpawnSettings settings(POSIX_SPAWN_SETPGROUP);
  settings.give(job_fd, kJobFd);
  settings.give(result_fd, kResultFd);
  settings.give(coordinator_fd, kCoordinatorFd);
  if (tasks_fd >= 0) settings.give(tasks_fd, kTasksFd);
  // All signals are blocked; the agent unblocks them once it has handlers.
  sigset_t blocked;
  ::sigemptyset(&blocked);
  if (checkpoint_signal != 0) ::sigaddset(&blocked, checkpoint_signal);
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) ::sigaddset(&blocked, number);
  settings.block(blocked);
  settings.set_default({SIGPIPE});
  std::vector<std::string> arguments{program,
                                     "--job-fd",
                                     std::to_string(kJobFd),
                                     "--result-fd",
                                     std::to_string(kResultFd),
                                     "--coordinator-fd",
                                     std::to_string(kCoordinatorFd)};
  if (tasks_fd >= 0) {
    arguments.insert(arguments.end(), {"--tasks-fd", std::to_string(kTasksFd)});
  }
  pid_t pid = 0;
  const int error = settings.spawn(pid, std::move(arguments));
  if (error == ENOENT) {
    return make_error(Errc::kNotFound, "{}: there is no such program; it belongs beside ddp-run",
                      program);
  }
  if (error != 0) return system_error(program.c_str(), error);
  return pid;
}

}  // namespace

Result<std::unique_ptr<AgentProcess>> AgentProcess::start(asio::io_context& io,
                                                          const std::string& program,
                                                          const config::JobSpec& spec,
                                                          EndCallback on_end, int tasks_fd) {
  const auto job = memory_file(config::encode(spec));
  if (!job) return job.error();
  Pipe result;
  Pipe coordinator;
  if (!result.open() || !coordinator.open()) return system_error("pipe", errno);
  ::fcntl(coordinator.write_end.get(), F_SETFL, O_NONBLOCK);
  const auto pid = spawn(program, job->get(), result.write_end.get(), coordinator.read_end.get(),
                         tasks_fd, spec.checkpoint_signal);
  if (!pid) return pid.error();
  UniqueFd pidfd = watch_child(*pid);
  if (!pidfd) return system_error("pidfd_open", errno);
  std::unique_ptr<AgentProcess> agent(
      new AgentProcess(io, *pid, std::move(pidfd), std::move(result.read_end),
                       std::move(coordinator.write_end), std::move(on_end)));
  agent->forwards_signals_ = spec.signals_from_launcher;
  agent->wait_for_end();
  agent->read_result();
  return agent;
}

AgentProcess::AgentProcess(asio::io_context& io, pid_t pid, UniqueFd pidfd, UniqueFd result_pipe,
                           UniqueFd coordinator_pipe, EndCallback on_end)
    : pid_(pid),
      pidfd_(io, pidfd.release()),
      result_pipe_(io, result_pipe.release()),
      coordinator_pipe_(std::move(coordinator_pipe)),
      on_end_(std::move(on_end)) {
  result_pipe_.non_blocking(true);
}

void AgentProcess::signal(int signal_number) const {
  const bool as_it_is = !forwards_signals_ || signal_number == SIGKILL;
  ::kill(pid_, as_it_is ? signal_number : config::forwarded_signal(signal_number));
}

void AgentProcess::tell_coordinator(const std::string& host, int port) const {
  const std::string line = fmt::format("{} {}\n", host, port);
  // An agent that does not read hangs or is about to end. Either way it needs no coordinator, so
  // errors are ignored.
  [[maybe_unused]] const ssize_t written =
      ::write(coordinator_pipe_.get(), line.data(), line.size());
}

void AgentProcess::read_result() {
  result_pipe_.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<void>(alive_)](const std::error_code& error) {
        // The end may have been handled in the same turn of the event loop.
        if (error || alive.expired()) return;
        if (drain_result()) read_result();
      });
}

// False at the end of the pipe.
bool AgentProcess::drain_result() {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(result_pipe_.native_handle(), buffer.data(), buffer.size());
    if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
    result_text_.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

void AgentProcess::wait_for_end() {
  pidfd_.async_wait(
      asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
        if (error) return;
        if (!has_ended(pidfd_.native_handle())) return wait_for_end();
        int status = 0;
        if (::waitpid(pid_, &status, 0) != pid_) status = 0;
        result_pipe_.cancel();
        drain_result();
        AgentEnd end;
        if (auto result = config::decode_agent_result(result_text_))
          end.result = std::move(*result);
        end.how = WIFSIGNALED(status) ? fmt::format("signal {} ({})", WTERMSIG(status),
                                                    signal_name(WTERMSIG(status)))
                                      : fmt::format("exit status {}", WEXITSTATUS(status));
        const EndCallback on_end = std::move(on_end_);
        on_end(end);
      });
}

std::string agent_program() { return program_beside("ddp-agent"); }

}  // namespace ddp::node
