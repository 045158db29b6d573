#include "launcher/slurm/command.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/process/spawn_settings.h"

namespace ddp::slurm {
namespace {

constexpr Duration kLimit{60'000};
constexpr std::size_t kMaxInput = 32u << 10;  // Fits into a pipe.

// Reads to the end of the pipe; false at the deadline.
bool read_all(int pipe, TimePoint deadline, std::string& text) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    pollfd item{pipe, POLLIN, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::max<Duration::rep>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t size = ::read(pipe, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return size == 0;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace

Result<FinishedCommand> run_command(const std::vector<std::string>& command,
                                    std::string_view input) {
  DDP_CHECK(!command.empty() && input.size() <= kMaxInput);
  Pipe in;
  Pipe out;
  if (!in.open() || !out.open()) {
    return make_error(Errc::kIo, "{}: no pipe: {}", command.front(),
                      std::generic_category().message(errno));
  }
  SpawnSettings settings;
  settings.give(in.read_end.get(), STDIN_FILENO);
  settings.give(out.write_end.get(), STDOUT_FILENO);
  settings.give(out.write_end.get(), STDERR_FILENO);
  settings.set_default({SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  // SLURM sends SIGTERM to every process of a job that it requeues. Without this, `scontrol
  // requeue` would die of its own request before it can report success.
  sigset_t of_the_job;
  ::sigemptyset(&of_the_job);
  ::sigaddset(&of_the_job, SIGTERM);
  settings.block(of_the_job);
  pid_t pid = 0;
  const int error = settings.spawn(pid, command);
  if (error != 0) {
    return make_error(error == ENOENT ? Errc::kNotFound : Errc::kIo, "{}",
                      error == ENOENT
                          ? command.front() + " is not in PATH here"
                          : command.front() + ": " + std::generic_category().message(error));
  }
  // A program that ends without reading must not kill this process, so SIGPIPE is blocked during
  // the write. The pipe holds all of the input, so the write does not wait.
  in.read_end.reset();
  sigset_t pipe_signal;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &pipe_signal, &before);
  [[maybe_unused]] const ssize_t written = ::write(in.write_end.get(), input.data(), input.size());
  const timespec now{};
  ::sigtimedwait(&pipe_signal, nullptr, &now);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  in.write_end.reset();
  out.write_end.reset();

  FinishedCommand finished;
  // The child is not reaped yet, so its process id cannot have been reused.
  if (!read_all(out.read_end.get(), Clock::now() + kLimit, finished.output)) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  finished.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return finished;
}

}  // namespace ddp::slurm
