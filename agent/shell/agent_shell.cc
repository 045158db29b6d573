#include "agent/shell/agent_shell.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "common/base/host_port.h"
#include "common/base/json_text.h"
#include "common/config/forwarded_signal.h"
#include "common/process/this_process.h"
#include "common/process/write_file.h"

namespace ddp::agent {
namespace {

// How long one attempt to clear a round may block.
constexpr Duration kClearSlice{50};
// How long tasks have to connect to an agent that replaces a lost one.
constexpr Duration kTasksReturnLimit{10'000};
// The pause between two attempts to clear a round.
constexpr Duration kClearPause{10};
constexpr Duration kClearLimit{5'000};
// How long a reader that takes nothing may delay our end once the end was requested.
constexpr Duration kFlushLimit{2'000};
constexpr Duration kFlushLook{1};

void unblock_signals() {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Whether the pipe has a reader. If not, the process that started this one is gone.
bool has_reader(int fd) {
  pollfd check{fd, 0, 0};
  return ::poll(&check, 1, 0) <= 0 || (check.revents & POLLERR) == 0;
}

}  // namespace

AgentShell::AgentShell(asio::io_context& io, AgentStart start)
    : io_(io),
      spec_(std::move(start.spec)),
      result_fd_(std::move(start.result_fd)),
      parent_(start.parent),
      core_(spec_, start.last_round, start.restarts),
      console_(Console::open_standard(io)),
      processes_(io, spec_, console_, worker_events()),
      event_log_(spec_, console_.err, processes_.files()),
      store_(io, spec_),
      credentials_{.token = spec_.rdzv_token,
                   .job_id = spec_.job_id,
                   .tls = std::move(start.tls),
                   .tls_name = spec_.tls_name,
                   .any_user = spec_.any_user},
      link_(io, {spec_.coordinator_host, spec_.coordinator_port}, credentials_,
            {[this] { tell([this](TimePoint now) { return core_.on_connected(now); }); },
             [this](const std::string& why) {
               tell([this, why](TimePoint now) { return core_.on_connect_failed(now, why); });
             },
             [this](const std::string& why) {
               tell([this, why](TimePoint now) { return core_.on_connect_refused(now, why); });
             },
             [this] { tell([this](TimePoint now) { return core_.on_disconnected(now); }); },
             [this](const wire::CoordinatorMessage& message) {
               if (const auto* request = std::get_if<wire::ShowOutput>(&message))
                 return show_output(*request);
               if (const auto* question = std::get_if<wire::ReadTrace>(&message))
                 return show_trace(*question);
               tell([this, message](TimePoint now) {
                 core_.on_unkillable(processes_.unkillable());
                 return core_.on_message(now, message);
               });
             },
             [this](const HostPort& at) { core_.on_moved(at.host, at.port); }}),
      store_door_(io, credentials_),
      tick_(io),
      clear_timer_(io),
      checkpoint_timer_(io),
      trace_timer_(io),
      user_signals_(io),
      child_signal_(io, SIGCHLD) {
  if (start.tasks_fd && spec_.in_tasks) {
    tasks_.emplace(io, std::move(start.tasks_fd), spec_.nproc);
    processes_.use_tasks(*tasks_);
  }
  if (!start.coordinator_fd) return;
  feed_.emplace(io, std::move(start.coordinator_fd), [this](const std::string& host, int port) {
    link_.set_endpoint({host, port});
  });
}

RoundProcesses::Events AgentShell::worker_events() {
  return {.on_exit =
              [this](const WorkerExit& exit) {
                const TimePoint seen = Clock::now();
                event_log_.worker_ended(exit);
                tell([this, exit = exit, seen](TimePoint now) mutable {
                  exit.age += std::chrono::duration_cast<Duration>(now - seen);
                  return core_.on_worker_exit(now, exit);
                });
              },
          .on_stuck =
              [this](const WorkerExit& exit) {
                tell([this, exit](TimePoint now) { return core_.on_worker_stuck(now, exit); });
              },
          .on_metrics =
              [this](int local_rank, const wire::Progress& progress) {
                core_.on_worker_metrics(local_rank, progress);
              },
          .on_progress =
              [this](int local_rank, std::int64_t step) {
                tell([=, this](TimePoint now) {
                  return core_.on_worker_progress(now, local_rank, step);
                });
              },
          .on_hello =
              [this](int local_rank, bool reconfigurable) {
                tell([=, this](TimePoint now) {
                  return core_.on_worker_hello(now, local_rank, reconfigurable);
                });
              },
          .on_joined = [this](int local_rank,
                              Round round) { core_.on_worker_joined(local_rank, round); },
          .on_parked =
              [this](int local_rank, Round round, std::int64_t step) {
                tell([=, this](TimePoint now) {
                  return core_.on_worker_parked(now, local_rank, round, step);
                });
              },
          .on_committed =
              [this](int local_rank, Round round, std::int64_t step) {
                tell([=, this](TimePoint now) {
                  return core_.on_worker_committed(now, local_rank, round, step);
                });
              },
          .on_snapshots =
              [this](int count) {
                tell([=, this](TimePoint now) { return core_.on_snapshots(now, count); });
              }};
}

int AgentShell::run() {
  std::vector<int> signals = spec_.signals;
  if (spec_.checkpoint_signal != 0) signals.push_back(spec_.checkpoint_signal);
  for (const int signal : signals) {
    if (spec_.signals_from_launcher) {
      ::signal(signal, SIG_IGN);
      user_signals_.add(config::forwarded_signal(signal));
    } else if (!is_ignored(signal)) {
      // nohup and similar programs start others with a signal ignored, and that must stay so.
      user_signals_.add(signal);
    }
  }
  unblock_signals();
  listen_for_health_checks();
  wait_for_signal();
  wait_for_child();
  wait_for_checkpoint_moment();
  watch_parent();
  if (tasks_) {
    wait_for_tasks();
  } else {
    start_core();
  }
  io_.run();
  return exit_code_.value_or(kExitInternal);
}

void AgentShell::wait_for_checkpoint_moment() {
  if (spec_.checkpoint_at_ms <= 0) return;
  checkpoint_timer_.at(TimePoint(Duration(spec_.checkpoint_at_ms)), [this] {
    tell([this](TimePoint now) { return core_.on_checkpoint_moment(now); });
  });
}

void AgentShell::start_core() {
  store_.examine([this] {
    if (store_.torch_lacks_libuv()) processes_.use_torch_without_libuv();
    tell([this](TimePoint now) { return core_.start(now); });
  });
}

// A round starts with all tasks. An earlier agent of this node had all of them, so a task that does
// not come back was lost, and its worker is started here.
void AgentShell::wait_for_tasks() {
  const Duration limit =
      spec_.successor ? kTasksReturnLimit : Duration(spec_.rules.join_timeout_ms);
  tasks_->when_complete(limit, [this](const std::set<int>& missing) {
    if (exit_code_) return;
    if (missing.empty() || spec_.successor) return start_core();
    config::AgentResult result;
    result.exit_code = kExitJoinTimeout;
    result.summary = fmt::format(
        "{} of {} tasks of srun on {} did not come in time (--join-timeout): local ranks {}",
        missing.size(), spec_.nproc, spec_.host, fmt::join(missing, ", "));
    finish(result);
  });
}

void AgentShell::tell(Event event) {
  events_.push_back(std::move(event));
  if (performing_) return;
  performing_ = true;
  while (!events_.empty()) {
    const Event next = std::move(events_.front());
    events_.pop_front();
    for (const Action& action : next(Clock::now())) {
      std::visit([this](const auto& kind) { perform(kind); }, action);
    }
  }
  performing_ = false;
  arm_timer();
}

void AgentShell::arm_timer() {
  const std::optional<TimePoint> deadline = core_.next_deadline();
  if (!deadline) return tick_.cancel();
  tick_.at(*deadline, [this] { tell([this](TimePoint now) { return core_.on_tick(now); }); });
}

void AgentShell::wait_for_signal() {
  user_signals_.async_wait([this](const std::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    // Without forwarded signals, a real-time signal is one that a user has named.
    const int signal = spec_.signals_from_launcher ? config::signal_behind(number) : number;
    hurried_ = hurried_ || signal != spec_.checkpoint_signal;
    tell([this, signal](TimePoint now) { return core_.on_signal(now, signal); });
  });
}

void AgentShell::wait_for_child() {
  child_signal_.async_wait([this](const std::error_code& error, int) {
    if (error) return;
    wait_for_child();
    processes_.reap_orphans();
  });
}

void AgentShell::watch_parent() {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, parent_, 0)));
  // The pid may belong to another process by now, unless it is still our parent's.
  if (!pidfd || ::getppid() != parent_ || !has_reader(result_fd_.get())) {
    return on_parent_lost();
  }
  parent_end_ = ProcessWatch::start(io_, std::move(pidfd), [this] {
    on_parent_lost();
    return true;
  });
}

void AgentShell::on_parent_lost() {
  hurried_ = true;
  tell([this](TimePoint now) { return core_.on_parent_lost(now); });
}

void AgentShell::listen_for_health_checks() {
  const char* port = std::getenv("TORCHELASTIC_HEALTH_CHECK_PORT");
  if (port == nullptr || *port == '\0') return;
  auto health = HealthCheck::listen(io_, port, spec_.any_user, [this] {
    return fmt::format("{{\"status\":\"alive\",\"job\":{},\"round\":{},\"workers\":{}}}",
                       dump_json(spec_.job_id), processes_.round(), processes_.running());
  });
  if (!health) return print(health.error().message);
  health_ = std::move(*health);
}

void AgentShell::perform(const Connect& action) { link_.connect(action.delay); }

void AgentShell::perform(const Disconnect&) { link_.disconnect(); }

void AgentShell::perform(const SendToCoordinator& action) {
  wire::AgentMessage message = store_.completed(action.message);
  std::visit(
      [this](auto& each) {
        if constexpr (requires { each.waits; }) each.waits = processes_.waits();
        if constexpr (requires { each.saved; }) each.saved = processes_.take_saved();
      },
      message);
  tell_rest_of_trace(message);
  link_.send(message);
}

void AgentShell::show_trace(const wire::ReadTrace& question) {
  link_.send(wire::AgentMessage(processes_.trace().answer(Clock::now(), question)));
  trace_timer_.after(TraceReader::kLease + Duration(1),
                     [this] { processes_.trace().expire(Clock::now()); });
}

// After these messages nobody may ask any more.
void AgentShell::tell_rest_of_trace(const wire::AgentMessage& message) {
  const bool have_ended = std::holds_alternative<wire::Succeeded>(message);
  if (!have_ended && !std::holds_alternative<wire::Stopped>(message) &&
      !std::holds_alternative<wire::Leave>(message)) {
    return;
  }
  while (auto rest = processes_.trace().rest(Clock::now(), have_ended))
    link_.send(wire::AgentMessage(std::move(*rest)));
}

void AgentShell::show_output(const wire::ShowOutput& request) {
  wire::Output output = processes_.output(request.local_rank);
  output.id = request.id;
  link_.send(wire::AgentMessage(std::move(output)));
}

void AgentShell::perform(const SpawnWorkers& action) {
  wire::RoundStart round = action.round;
  lead_to_store(round);
  store_.begin_round(round);
  event_log_.round_began(round);
  if (round.round > 0 && !round.reason.empty())
    print(fmt::format("round {}: {}", round.round, round.reason));
  for (const auto& failure : processes_.start(round)) {
    tell([this, failure](TimePoint now) {
      return core_.on_spawn_failed(now, failure.local_rank, failure.status, failure.why);
    });
  }
}

// What workers say to a store on another machine goes through the agent if the job has a secret.
void AgentShell::lead_to_store(wire::RoundStart& round) {
  // The address at which this node reaches the coordinator's host.
  if (round.master_addr.empty()) round.master_addr = link_.remote_address();
  round.coordinator_addr = round.master_addr;
  round.coordinator_port = round.master_port;
  const bool has_secret = !credentials_.token.empty() || credentials_.tls;
  if (!has_secret || is_loopback(round.master_addr)) return;
  const Result<int> port = store_door_.lead_to(round.master_addr, round.master_port);
  if (!port) return print(port.error().message);
  round.master_addr = StoreDoor::kAddress;
  round.master_port = *port;
}

void AgentShell::perform(const SignalWorkers& action) {
  event_log_.workers_stopped(action.signal);
  processes_.signal(action.signal, action.abort_reason, action.keep);
}

void AgentShell::perform(const KillWorkers& action) { processes_.signal(SIGKILL, "", action.keep); }

void AgentShell::perform(const ClearRound& action) {
  const auto done = [this] {
    tell([this](TimePoint now) {
      core_.on_unkillable(processes_.unkillable());
      return core_.on_round_cleared(now, processes_.take_operations());
    });
  };
  const Duration killed_for = action.killed_for;
  // What was given its time after SIGKILL gets no more.
  const Duration limit = killed_for > Duration(0) ? Duration(0) : kClearLimit;
  clear_processes({action.keep, limit, killed_for}, done);
}

void AgentShell::perform(const RequestCommit& action) {
  processes_.request_commit({action.round, action.deadline_ms}, action.from);
}

void AgentShell::perform(const RequestCheckpoint&) { processes_.request_checkpoint(); }

void AgentShell::perform(const FindHung& action) {
  tell([this, hung = processes_.hung(action.stalled)](TimePoint now) {
    return core_.on_hung_workers(now, hung);
  });
}

void AgentShell::perform(const DumpStacks& action) { processes_.dump_stacks(action.local_rank); }

void AgentShell::perform(const KillWorker& action) {
  processes_.kill(action.local_rank, action.cause);
}

void AgentShell::perform(const Print& action) { print(action.text); }

void AgentShell::perform(const Exit& action) {
  if (!action.spare_writers) processes_.give_writers_up();
  clear_processes({std::nullopt, kClearLimit}, [this, result = action.result] { finish(result); });
}

void AgentShell::clear_processes(const Clearing& clearing, std::function<void()> done) {
  const auto& keep = clearing.keep;
  const bool cleared =
      keep ? processes_.clear(*keep, kClearSlice) : processes_.clear_all(kClearSlice);
  const Duration passed = std::chrono::floor<Duration>(Clock::now() - clearing.since);
  if (!cleared && passed < clearing.limit) {
    clear_timer_.after(kClearPause, [=, this] { clear_processes(clearing, done); });
    return;
  }
  if (!cleared) processes_.give_up(keep, clearing.killed_for + passed);
  done();
}

void AgentShell::finish(const config::AgentResult& result) {
  exit_code_ = result.exit_code;
  processes_.finish_output();
  event_log_.agent_ended(result);
  flush_output([this, result] {
    write_result(result);
    link_.disconnect();
    link_.when_closed([this] { io_.stop(); });
  });
}

// A reader that goes on reading gets all of it, and so does a disk.
void AgentShell::flush_output(std::function<void()> done) {
  const Duration limit = hurried_ ? kFlushLimit : Console::kStallLimit;
  const auto takes = [limit](const auto& output) {
    return !output.empty() && Clock::now() - output.last_taken() < limit;
  };
  const FileWriter& files = processes_.files();
  if (takes(files) || takes(*console_.out) || takes(*console_.err))
    return clear_timer_.after(kFlushLook, [this, done] { flush_output(done); });
  if (const std::size_t left = files.queued_bytes(); left > 0) {
    print(
        fmt::format("--log-dir: the disk has not answered for {} s; the last {} bytes of the "
                    "workers' output are lost",
                    static_cast<double>(limit.count()) / 1'000, left));
  }
  done();
}

void AgentShell::write_result(const config::AgentResult& result) {
  const std::string bytes = config::encode(result);
  std::string_view rest = bytes;
  write_all(result_fd_.get(), rest);  // If ddp-run is gone, nobody else needs the result.
  result_fd_.reset();
}

void AgentShell::print(const std::string& text) {
  if (!spec_.notices) return;
  console_.err->print(fmt::format("ddp-run: {}", text));
}

}  // namespace ddp::agent
