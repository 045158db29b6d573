#include "agent/process/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "agent/process/spawn.h"
#include "agent/process/worker_env.h"

namespace ddp::agent {

struct Worker::Pipes {
  UniqueFd out_read, out_write;
  UniqueFd err_read, err_write;
  UniqueFd control_agent, control_worker;
};

Worker::Worker(const WorkerContext& context, int local_rank)
    : context_(context), local_rank_(local_rank), pidfd_(context.io) {}

Result<Worker::Pipes> Worker::make_pipes() {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  int control[2] = {-1, -1};
  const bool made = ::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0 &&
                    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0;
  const int error_number = errno;
  Pipes pipes{UniqueFd(out[0]), UniqueFd(out[1]),     UniqueFd(err[0]),
              UniqueFd(err[1]), UniqueFd(control[0]), UniqueFd(control[1])};
  if (!made) {
    return make_error(Errc::kIo, "pipes to local rank {}: {}", local_rank_,
                      std::generic_category().message(error_number));
  }
  return pipes;
}

void Worker::open_logs(const wire::RoundStart& round, Rank rank) {
  if (context_.spec.log_dir.empty()) return;
  Result<LogFiles> logs =
      open_log_files(context_.spec.log_dir, context_.spec.job_id, round.round, rank);
  if (logs) {
    logs_ = std::move(*logs);
  } else {
    context_.console.err->write(fmt::format(
        "ddp-run: --log-dir: {}; rank {} goes on without log files\n", logs.error().message, rank));
  }
}

void Worker::capture(Pipes& pipes, const std::string& prefix) {
  out_ = OutputCapture::start(context_.io, std::move(pipes.out_read), context_.console.out,
                              {prefix, std::move(logs_.out), false});
  err_ = OutputCapture::start(context_.io, std::move(pipes.err_read), context_.console.err,
                              {prefix, std::move(logs_.err), true});
  channel_ =
      WorkerChannel::start(context_.io, std::move(pipes.control_agent),
                           [this](const wire::WorkerMessage& message) { on_message(message); });
}

Result<std::shared_ptr<Worker>> Worker::start(const WorkerContext& context,
                                              const wire::RoundStart& round, int local_rank,
                                              int shm_fd) {
  std::shared_ptr<Worker> worker(new Worker(context, local_rank));
  const Rank rank = rank_of(round, local_rank);
  Result<Pipes> pipes = worker->make_pipes();
  if (!pipes) return pipes.error();
  worker->open_logs(round, rank);

  WorkerEnvInputs inputs;
  inputs.local_rank = local_rank;
  inputs.control_fd = pipes->control_worker.get();
  inputs.shm_fd = shm_fd;
  inputs.usable_cores = context.usable_cores;
  inputs.error_file = worker->logs_.error_path;
  SpawnRequest request;
  request.command = context.spec.command;
  request.environment =
      worker_environment(context.spec, round, inputs, context.inherited_environment);
  request.stdout_fd = pipes->out_write.get();
  request.stderr_fd = pipes->err_write.get();
  request.inherited_fds = {inputs.control_fd, shm_fd};
  Result<SpawnedProcess> process = spawn(request);
  if (!process) return process.error();

  const bool prefixed = round.world_size > 1 || context.spec.single_node_prefix;
  worker->capture(*pipes,
                  prefixed ? fmt::format("[{}:{}] ", context.spec.host, rank) : std::string());
  worker->pid_ = process->pid;
  worker->running_ = true;
  worker->pidfd_.assign(process->pidfd.release());
  worker->wait();
  return worker;
}

void Worker::wait() {
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [weak = weak_from_this()](const std::error_code& error) {
                      const auto self = weak.lock();
                      if (self && !error) self->reap();
                    });
}

void Worker::reap() {
  if (!running_) return;
  siginfo_t info{};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  if (result == 0 && info.si_pid == 0) return;
  running_ = false;
  std::error_code ignored;
  pidfd_.close(ignored);
  channel_->drain();
  out_->drain();
  err_->drain();

  WorkerExit exit;
  exit.local_rank = local_rank_;
  exit.pid = pid_;
  if (result != 0) {
    exit.signal =
        SIGKILL;  // Somebody has reaped it: only kill_descendants does that, after killing it.
  } else if (info.si_code == CLD_EXITED) {
    exit.exit_code = info.si_status;
  } else {
    exit.signal = info.si_status;
  }
  using std::chrono::system_clock;
  exit.time_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(system_clock::now().time_since_epoch())
          .count();
  exit.secondary = error_.secondary;
  exit.message = error_.message;
  if (exit.message.empty() && !logs_.error_path.empty())
    exit.message = read_error_file(logs_.error_path);
  exit.log_path = logs_.err_path;
  exit.stderr_tail = err_->tail();
  context_.on_exit(exit);
}

void Worker::signal(int number) {
  if (!running_) return;
  // Not reaped yet, so neither the process nor its group can be somebody else's.
  ::kill(-pid_, number);
  if (number != SIGKILL) ::kill(-pid_, SIGCONT);
}

void Worker::close() {
  running_ = false;
  std::error_code ignored;
  pidfd_.close(ignored);
  channel_->close();
  for (const auto& capture : {out_, err_}) {
    capture->drain();
    capture->close();
  }
}

void Worker::on_message(const wire::WorkerMessage& message) {
  if (const auto* progress = std::get_if<wire::Progress>(&message))
    context_.on_progress(local_rank_, progress->step);
  if (const auto* error = std::get_if<wire::WorkerError>(&message)) error_ = *error;
}

}  // namespace ddp::agent
