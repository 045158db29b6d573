#include "launcher/hosts/host_process.h"

#include <signal.h>
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

Error system_error(const char* what) {
  return make_error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

Result<pid_t> spawn(const std::vector<std::string>& argv, const Pipe& input, const Pipe& output,
                    const Pipe& error) {
  SpawnSettings settings(POSIX_SPAWN_SETSID);
  settings.give(input.read_end.get(), STDIN_FILENO);
  settings.give(output.write_end.get(), STDOUT_FILENO);
  settings.give(error.write_end.get(), STDERR_FILENO);
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
  Pipe input;
  Pipe output;
  Pipe error;
  if (!input.open() || !output.open() || !error.open()) return system_error("pipe");
  const auto pid = spawn(argv, input, output, error);
  if (!pid) return pid.error();
  UniqueFd pidfd = watch_child(*pid);
  if (!pidfd) return system_error("pidfd_open");
  std::shared_ptr<HostProcess> process(
      new HostProcess(io, *pid, std::move(pidfd), std::move(input.write_end),
                      std::move(output.read_end), std::move(error.read_end), std::move(events)));
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
