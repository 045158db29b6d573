#include "agent/process/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "agent/process/exit_cause.h"
#include "agent/process/failure_time.h"
#include "agent/process/spawn_program.h"
#include "agent/process/worker_command.h"
#include "agent/process/worker_env.h"
#include "common/base/check.h"

namespace ddp::agent {

struct Worker::Pipes {
  UniqueFd out_read, out_write;
  UniqueFd err_read, err_write;
  UniqueFd control_agent, control_worker;
};

Worker::Worker(WorkerContext& context, int local_rank)
    : context_(context), local_rank_(local_rank) {}

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

void Worker::keep_logs(LogFiles logs) {
  logs_ = std::move(logs);
  // If that fails, opening the files does, too, and says so.
  context_.output.writer().run([logs = logs_] { return clear_old_log_files(logs); }, {});
}

void Worker::choose_error_file() {
  static int count = 0;  // Counts in this process, which is one agent.
  if (context_.error_folder.empty()) return;
  error_path_ = fmt::format("{}/{}.error.json", context_.error_folder, ++count);
  ::unlink(error_path_.c_str());
}

// The disk of the log files may not answer, and the report of a failure does not wait for it.
wire::ErrorFile Worker::take_error_file() {
  const std::string text = error_path_.empty() ? "" : read_error_file(error_path_);
  if (!text.empty() && !logs_.base.empty()) {
    const std::string path = logs_.error_path();
    context_.output.writer().run(
        [path, text]() -> Result<void> {
          ::unlink(path.c_str());
          return append_to_log(path, text);
        },
        context_.output.log_trouble("an exception is only in the report"));
  }
  return error_in(text);
}

Result<std::shared_ptr<Worker>> Worker::start(WorkerContext& context, const wire::RoundStart& round,
                                              int local_rank, int shm_fd) {
  std::shared_ptr<Worker> worker(new Worker(context, local_rank));
  worker->round_ = round.round;
  Result<Pipes> pipes = worker->make_pipes();
  if (!pipes) return pipes.error();
  if (const config::JobSpec& spec = context.spec; !spec.log_dir.empty()) {
    worker->keep_logs(log_files_of(spec, round.round, rank_of(round, local_rank),
                                   context.output.files(round, local_rank)));
  }
  worker->choose_error_file();
  const WorkerCpus* cpus = context.cpus_of(local_rank);
  WorkerEnvInputs inputs{.local_rank = local_rank,
                         .control_fd = pipes->control_worker.get(),
                         .shm_fd = shm_fd,
                         .usable_cores = context.usable_cores,
                         .threads = cpus != nullptr ? cpus->threads : 0,
                         .timer_file = context.timer_file,
                         .torch_lacks_libuv = context.torch_lacks_libuv,
                         .snapshots = context.snapshots,
                         .error_file = worker->error_path_};
  const std::vector<std::string>* inherited = &context.inherited_environment;
  if (context.tasks != nullptr) {
    const std::vector<int> shares = context.tasks->cpu_shares();
    inputs.usable_cores =
        shares.at(static_cast<std::size_t>(local_rank)) * static_cast<int>(shares.size());
    worker->task_ = context.tasks->of(local_rank);
    if (const auto* tasks_own = context.tasks->environment_of(local_rank)) inherited = tasks_own;
  }
  if (worker->task_) {
    inputs.control_fd = wire::kTaskControlFd;
    inputs.shm_fd = wire::kTaskMemoryFd;
  }
  const auto started =
      worker->run(*pipes, worker_environment(context.spec, round, inputs, *inherited),
                  {pipes->control_worker.get(), shm_fd},
                  [&](int stream) { return context.output.route(round, local_rank, stream); });
  if (!started) return started.error();
  return worker;
}

Result<std::shared_ptr<Worker>> Worker::start_standby(WorkerContext& context, int number) {
  std::shared_ptr<Worker> worker(new Worker(context, -1));
  Result<Pipes> pipes = worker->make_pipes();
  if (!pipes) return pipes.error();
  if (const config::JobSpec& spec = context.spec; !spec.log_dir.empty()) {
    worker->keep_logs(standby_log_files(spec,
                                        fmt::format("{}_{}_{}", spec.host, spec.node_id, number),
                                        context.output.standby_files()));
  }
  worker->choose_error_file();
  const WorkerEnvInputs inputs{.control_fd = pipes->control_worker.get(),
                               .usable_cores = context.usable_cores,
                               .timer_file = context.timer_file,
                               .torch_lacks_libuv = context.torch_lacks_libuv,
                               .snapshots = context.snapshots,
                               .error_file = worker->error_path_};
  const auto started = worker->run(
      *pipes, standby_environment(context.spec, inputs, context.inherited_environment),
      {inputs.control_fd}, [&](int stream) { return context.output.standby_route(stream); });
  if (!started) return started.error();
  return worker;
}

Result<void> Worker::run(Pipes& pipes, std::vector<std::string> environment,
                         std::vector<int> inherited,
                         std::function<OutputCapture::Route(int stream)> route) {
  SpawnRequest request;
  request.command = command_of(context_.spec.command, local_rank_);
  request.environment = std::move(environment);
  // As under torchrun: workers inherit the input of ddp-run, a pipe or a terminal.
  request.stdin_fd = STDIN_FILENO;
  request.stdout_fd = pipes.out_write.get();
  request.stderr_fd = pipes.err_write.get();
  request.inherited_fds = std::move(inherited);
  if (const WorkerCpus* cpus = context_.cpus_of(local_rank_)) request.cpus = cpus->cpus;
  Result<SpawnedProcess> process = task_ ? spawn_in_task(pipes, request) : spawn(request);
  if (!process) return process.error();

  const auto capture = [&](UniqueFd pipe, int stream) {
    FileWriter::Opener file;
    if ((logs_.streams & stream) != 0)
      file = [path = logs_.path_of(stream)] { return open_log_file(path); };
    return OutputCapture::start(context_.io, std::move(pipe),
                                context_.output.console_pointer(stream), context_.output.writer(),
                                {route(stream), std::move(file), stream == config::kStderr});
  };
  out_ = capture(std::move(pipes.out_read), config::kStdout);
  err_ = capture(std::move(pipes.err_read), config::kStderr);
  channel_ =
      WorkerChannel::start(context_.io, std::move(pipes.control_agent),
                           [this](const wire::WorkerMessage& message) { on_message(message); });
  pid_ = process->pid;
  running_ = true;
  end_ = ProcessWatch::start(context_.io, std::move(process->pidfd), [weak = weak_from_this()] {
    const auto self = weak.lock();
    return !self || self->reap();
  });
  return {};
}

Result<SpawnedProcess> Worker::spawn_in_task(Pipes& pipes, SpawnRequest request) {
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(pipes.out_write));
  descriptors.push_back(std::move(pipes.err_write));
  descriptors.push_back(std::move(pipes.control_worker));
  descriptors.emplace_back(::fcntl(request.inherited_fds.back(), F_DUPFD_CLOEXEC, 3));
  return task_->start({std::move(request.command), std::move(request.environment)}, descriptors);
}

void Worker::take_place(const wire::RoundStart& round, int local_rank, int shm_fd) {
  // A standby runs on any CPU until it knows whose place it takes.
  if (const WorkerCpus* cpus = context_.cpus_of(local_rank); cpus != nullptr && local_rank_ < 0)
    bind_process(pid_, cpus->cpus);
  local_rank_ = local_rank;
  round_ = round.round;
  waiting_ = false;
  error_ = {};
  // An error file of the round before does not explain a later end.
  if (!error_path_.empty()) ::unlink(error_path_.c_str());
  sent_signals_.clear();
  const Rank rank = rank_of(round, local_rank);
  const std::string separator =
      fmt::format("--- round {}, rank {}: {} ---", round.round, rank, round.reason);
  out_->begin_round(context_.output.route(round, local_rank, config::kStdout), separator);
  err_->begin_round(context_.output.route(round, local_rank, config::kStderr), separator);
  if (!logs_.base.empty()) {
    const LogFiles links = log_files_of(context_.spec, round.round, rank, logs_.streams);
    context_.output.writer().run([links, logs = logs_] { return link_log_files(links, logs); },
                                 context_.output.log_trouble(fmt::format(
                                     "the output of rank {} is in {} alone", rank, logs_.base)));
  }
  channel_->send(wire::NewRound{round.round, round_environment(context_.spec, round, local_rank)},
                 shm_fd);
}

void Worker::drain_output() {
  out_->drain();
  err_->drain();
}

bool Worker::reap() {
  if (!running_) return true;
  bool known = true;
  const auto ended = take_status(known);
  if (!ended && known) return false;
  running_ = false;
  end_->close();
  dump_.reset();
  channel_->drain();
  waiting_ = false;  // Whatever it has just said.
  drain_output();
  // The status is gone: either kill_descendants() has killed and reaped the process, or its task is
  // gone and has killed it.
  context_.on_exit(*this, ended ? describe_exit(ended->exit_code, ended->signal, ended->core_dumped)
                                : describe_exit(0, SIGKILL, false));
  return true;
}

std::optional<wire::WorkerEnded> Worker::take_status(bool& known) {
  if (task_) {
    // Do not wait for a process that still runs.
    if (!end_->has_ended()) return std::nullopt;
    auto status = task_->take_status(pid_);
    known = status.has_value();
    return status;
  }
  siginfo_t info{};
  known = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) == 0;
  if (!known || info.si_pid == 0) return std::nullopt;
  const bool exited = info.si_code == CLD_EXITED;
  return wire::WorkerEnded{pid_, exited ? info.si_status : 0, exited ? 0 : info.si_status,
                           info.si_code == CLD_DUMPED};
}

WorkerExit Worker::describe_exit(int exit_code, int signal, bool core_dumped) {
  WorkerExit exit;
  exit.local_rank = local_rank_;
  exit.pid = pid_;
  exit.exit_code = exit_code;
  exit.signal = signal;
  exit.time_ms = file_clock_ms();
  exit.log_path = logs_.main_path();
  exit.stderr_tail = err_->tail();
  if (exit_code == 0 && signal == 0) return exit;
  const wire::ErrorFile file = take_error_file();
  exit.secondary = error_.secondary || file.secondary;
  exit.message = error_.message.empty() ? file.message : error_.message;
  exit.callstack = file.callstack;
  exit.has_error_file = !file.message.empty();
  if (exit.has_error_file) {
    exit.time_ms = failure_time({exit.time_ms, file.time_ms, written_ms(error_path_.c_str())});
    exit.age = age_of(exit.time_ms);
  }
  // An exception in its output may be long past, unless the program ended by it.
  if (exit.message.empty() && (signal == 0 || signal == SIGABRT)) exit.message = err_->exception();
  exit.cause = cause_of(exit_code, signal, core_dumped, exit.message, exit.secondary);
  return exit;
}

WorkerExit Worker::exit_by_kill(const std::string& cause) {
  drain_output();
  kill_cause_ = cause;
  return describe_exit(0, SIGKILL, false);
}

std::string Worker::cause_of(int exit_code, int signal, bool core_dumped,
                             const std::string& message, bool secondary) {
  if (signal == kill_signal_ && !kill_cause_.empty()) return kill_cause_;
  MemoryKills& kills = context_.memory_kills;
  const Ending ending{.exit_code = exit_code,
                      .signal = signal,
                      .core_dumped = core_dumped,
                      .sent_by_agent = sent_signals_.contains(signal),
                      .memory_is_watched = kills.can_tell(),
                      .memory_kills = secondary ? 0 : kills.unclaimed(),
                      .memory_limit = kills.limit(),
                      .message = message};
  if (signal == SIGKILL && ending.memory_kills > 0) kills.claim(1);
  return describe_ending(ending);
}

void Worker::signal(int number) {
  if (!running_) return;
  DDP_CHECK(pid_ > 1, "pid {} is not a process id", pid_);
  sent_signals_.insert(number);
  // Not reaped yet, so neither the pid nor the group can belong to another process.
  ::kill(-pid_, number);
  if (number != SIGKILL) ::kill(-pid_, SIGCONT);
}

void Worker::resume() {
  if (running_ && pid_ > 1) ::kill(-pid_, SIGCONT);
}

void Worker::dump_stacks() {
  if (!running_ || dump_) return;
  const StackSource source{pid_, speaker_.pid, speaker_.signal};
  if (speaker_.signal > 0)
    err_->add_lines(fmt::format("--- stacks of process {} by its interpreter ---\n", speaker_.pid));
  dump_ = StackDump::start(context_.io, source, [this](const std::string& text) {
    drain_output();
    err_->add_lines(
        fmt::format("--- stacks of process {} ---\n{}--- end of stacks ---\n", pid_, text));
    dump_.reset();
    if (kill_after_dump_) signal(SIGKILL);
  });
}

void Worker::kill(const std::string& cause) {
  if (!running_) return;
  kill_cause_ = cause;
  if (dump_) {
    kill_after_dump_ = true;
  } else {
    signal(SIGKILL);
  }
}

void Worker::expire(int number, const std::string& cause) {
  if (!running_ || !kill_cause_.empty()) return;
  kill_signal_ = number;
  kill_cause_ = cause;
  signal(number);
}

void Worker::close() {
  running_ = false;
  waiting_ = false;
  dump_.reset();
  end_->close();
  channel_->close();
  for (const auto& capture : {out_, err_}) {
    capture->drain();
    capture->close();
  }
}

void Worker::on_message(const wire::WorkerMessage& message) {
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    said_hello_ = true;
    reconfigurable_ = hello->reconfigurable;
    speaker_ = {hello->pid, hello->stack_signal};
    waiting_ = local_rank_ < 0 && reconfigurable_;
  } else if (const auto* parked = std::get_if<wire::Parked>(&message)) {
    if (parked->round != round_ || !reconfigurable_) return;
    waiting_ = true;
  } else if (const auto* error = std::get_if<wire::WorkerError>(&message)) {
    error_ = *error;
    cut_message(error_.message);
  }
  context_.on_message(*this, message);
}

}  // namespace ddp::agent
