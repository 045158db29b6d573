#include "launcher/hosts/host_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include <asio/buffer.hpp>
#include <asio/write.hpp>

#include "common/process/process_end.h"
#include "common/process/spawn_settings.h"

namespace ddp::hosts {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return make_error(Errc::kIo, "pipe: {}", std::generic_category().message(errno));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Descriptors that dup2() copies to 0, 1 and 2 must not have these numbers already.
UniqueFd moved_up(UniqueFd fd) {
  constexpr int kFirst = 10;
  return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirst));
}

Result<pid_t> spawn(const std::vector<std::string>& argv, int input, int output, int error) {
  SpawnSettings settings(POSIX_SPAWN_SETSID);
  settings.give(input, STDIN_FILENO);
  settings.give(output, STDOUT_FILENO);
  settings.give(error, STDERR_FILENO);
  settings.set_default({SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1});
  pid_t pid = 0;
  const int failure = settings.spawn(pid, argv);
  if (failure == 0) return pid;
  return make_error(failure == ENOENT ? Errc::kNotFound : Errc::kIo, "{} cannot be started: {}",
                    argv[0], std::generic_category().message(failure));
}

}  // namespace

Result<std::shared_ptr<HostProcess>> HostProcess::start(asio::io_context& io,
                                                        const std::vector<std::string>& argv,
                                                        Events events) {
  std::array<Pipe, 3> pipes;
  for (Pipe& pipe : pipes) {
    auto made = make_pipe();
    if (!made) return made.error();
    pipe = std::move(*made);
  }
  const UniqueFd input = moved_up(std::move(pipes[0].read_end));
  const UniqueFd output = moved_up(std::move(pipes[1].write_end));
  const UniqueFd error = moved_up(std::move(pipes[2].write_end));
  const auto pid = spawn(argv, input.get(), output.get(), error.get());
  if (!pid) return pid.error();
  // The child is not reaped yet, so its process id cannot have been reused.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, *pid, 0)));
  if (!pidfd) {
    const int reason = errno;
    ::kill(*pid, SIGKILL);
    ::waitpid(*pid, nullptr, 0);
    return make_error(Errc::kIo, "pidfd_open: {}", std::generic_category().message(reason));
  }
  std::shared_ptr<HostProcess> process(new HostProcess(
      io, *pid, std::move(pidfd), std::move(pipes[0].write_end), std::move(pipes[1].read_end),
      std::move(pipes[2].read_end), std::move(events)));
  process->begin();
  return process;
}

HostProcess::HostProcess(asio::io_context& io, pid_t pid, UniqueFd pidfd, UniqueFd input,
                         UniqueFd output, UniqueFd error, Events events)
    : pid_(pid),
      pidfd_(io, pidfd.release()),
      input_(io, input.release()),
      output_{Stream::kOutput, asio::posix::stream_descriptor(io, output.release())},
      error_{Stream::kError, asio::posix::stream_descriptor(io, error.release())},
      events_(std::move(events)) {
  output_.pipe.non_blocking(true);
  error_.pipe.non_blocking(true);
}

HostProcess::~HostProcess() = default;

void HostProcess::begin() {
  read(output_);
  read(error_);
  wait();
}

void HostProcess::wait() {
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const std::error_code& error) {
                      if (error) return;
                      if (!has_ended(self->pidfd_.native_handle())) return self->wait();
                      ::waitpid(self->pid_, &self->status_, 0);
                      self->exited_ = true;
                      self->finish();
                    });
}

void HostProcess::read(Source& source) {
  if (source.waiting || source.ended || paused_ || !events_.on_bytes) return;
  source.waiting = true;
  source.pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this(), &source](const std::error_code& error) {
                           source.waiting = false;
                           if (error || self->paused_ || !self->events_.on_bytes) return;
                           if (!self->read_what_is_there(source)) source.ended = true;
                           self->read(source);
                         });
}

// Reads one buffer; false at the end of the pipe.
bool HostProcess::read_what_is_there(Source& source) {
  std::array<char, kReadBytes> buffer;
  const ssize_t count = ::read(source.pipe.native_handle(), buffer.data(), buffer.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  // A copy, because the callback may clear this object's events.
  const auto on_bytes = events_.on_bytes;
  on_bytes(source.stream, std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  return true;
}

// Everything that the process wrote is in the pipes by now. Other processes may still hold them (an
// ssh that stays in the background for its next connection); it does not wait for these.
void HostProcess::finish() {
  if (!exited_ || paused_ || !events_.on_end) return;
  const auto self = shared_from_this();  // The callback may drop the last reference.
  for (Source* source : {&output_, &error_}) {
    while (!source->ended) {
      std::array<char, kReadBytes> buffer;
      const ssize_t count = ::read(source->pipe.native_handle(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      events_.on_bytes(source->stream,
                       std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      if (paused_) return;
    }
  }
  const auto on_end = std::exchange(events_, {}).on_end;
  std::error_code ignored;
  output_.pipe.close(ignored);
  error_.pipe.close(ignored);
  input_.close(ignored);
  on_end(status_);
}

void HostProcess::send(std::string bytes) {
  if (exited_ || close_wanted_ || bytes.empty()) return;
  to_send_.push_back(std::move(bytes));
  write_next();
}

void HostProcess::close_input() {
  close_wanted_ = true;
  write_next();
}

void HostProcess::write_next() {
  if (writing_ || !input_.is_open()) return;
  std::error_code ignored;
  if (to_send_.empty()) {
    if (close_wanted_) input_.close(ignored);
    return;
  }
  writing_ = true;
  asio::async_write(input_, asio::buffer(to_send_.front()),
                    [self = shared_from_this()](const std::error_code& error, std::size_t) {
                      self->writing_ = false;
                      self->to_send_.pop_front();
                      // A child that no longer reads is about to end, and on_end reports that.
                      if (error) self->to_send_.clear();
                      self->write_next();
                    });
}

void HostProcess::kill(int signal) const {
  if (!exited_ && pid_ > 1) ::kill(pid_, signal);
}

void HostProcess::pause_reading() { paused_ = true; }

void HostProcess::resume_reading() {
  if (!std::exchange(paused_, false)) return;
  read(output_);
  read(error_);
  finish();
}

}  // namespace ddp::hosts
