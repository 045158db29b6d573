#include "agent/process/round_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "agent/process/link_key.h"
#include "agent/process/log_files.h"
#include "agent/process/round_flights.h"
#include "agent/process/spawn_program.h"
#include "common/base/check.h"
#include "common/base/exit_codes.h"
#include "common/config/scratch_folder.h"
#include "common/config/snapshot_writer_mark.h"
#include "common/process/descendants.h"
#include "common/process/this_process.h"

namespace ddp::agent {
namespace {

// How soon to look for orphans again while the end of a worker is not taken note of yet.
constexpr Duration kHiddenPause{1};
// ddp-run has counted them; it also knows the quota of the control group.
int usable_cores(const config::JobSpec& spec) {
  if (spec.usable_cores > 0) return spec.usable_cores;
  const auto allowed = static_cast<int>(allowed_cpus().size());
  return allowed > 0 ? allowed : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// A folder for error files: this machine's, which answers.
std::string make_error_folder(const config::JobSpec& spec) {
  const std::string folder = config::scratch_folder(spec.node_id);
  return config::make_scratch_folder(folder) ? folder : "";
}

}  // namespace

RoundProcesses::RoundProcesses(asio::io_context& io, config::JobSpec spec, Console::Pair console,
                               Events events, const std::string& writer)
    : spec_(std::move(spec)),
      environment_(own_environment()),
      events_(std::move(events)),
      output_(io, spec_, std::move(console)),
      status_(io, output_.console_pointer(config::kStderr)),
      context_{io,
               spec_,
               environment_,
               output_,
               usable_cores(spec_),
               MemoryKills::of_this_process(),
               0,
               make_error_folder(spec_),
               [this](const Worker& worker, const WorkerExit& exit) { on_exit(worker, exit); },
               [this](Worker& worker, const wire::WorkerMessage& message) {
                 on_message(worker, message);
               }},
      writers_(io, {.program = writer, .environment = environment_},
               {.on_count = [this](int count) { events_.on_snapshots(count); },
                .print = [this](const std::string& text) { print(text); }}),
      trace_(spec_.host, clock_name()),
      states_(Duration(spec_.uninterruptible_ms)),
      states_timer_(io),
      orphans_timer_(io) {
  context_.snapshots = writers_.limit();
  auto cpus = bind_workers(spec_);
  if (cpus) {
    context_.cpus = std::move(*cpus);
  } else {
    cannot_start_ = cpus.error().message;
  }
  start_timers(io);
  watch_states();
}

void RoundProcesses::start_timers(asio::io_context& io) {
  const auto path = timer_file_wanted(std::getenv, config::scratch_folder(spec_.node_id));
  if (!path) return;
  config::make_scratch_folder(config::scratch_folder(spec_.node_id));
  auto timers = FileTimers::listen(io, *path, [this](const Expired& expired) {
    expire(expired.pid, expired.signal, fmt::format("its timer '{}' has expired", expired.scope));
  });
  if (!timers) return print(timers.error().message);
  timers_ = std::move(*timers);
  context_.timer_file = *path;
}

RoundProcesses::~RoundProcesses() {
  for (const auto& worker : workers_) worker->close();
  for (const auto& standby : standbys_) standby->close();
  timers_.reset();
  if (!context_.timer_file.empty())
    config::remove_scratch_folder(config::scratch_folder(spec_.node_id));
  if (!context_.error_folder.empty()) config::remove_scratch_folder(context_.error_folder);
}

std::shared_ptr<Worker> RoundProcesses::take_waiting(std::vector<std::shared_ptr<Worker>>& kept,
                                                     int local_rank) {
  const auto take = [](std::vector<std::shared_ptr<Worker>>& from, const auto& fits) {
    const auto found = std::find_if(from.begin(), from.end(), fits);
    if (found == from.end()) return std::shared_ptr<Worker>();
    const std::shared_ptr<Worker> worker = *found;
    from.erase(found);
    return worker;
  };
  const auto parked = take(kept, [local_rank](const std::shared_ptr<Worker>& worker) {
    return worker->is_waiting() && worker->local_rank() == local_rank;
  });
  if (parked) return parked;
  return take(standbys_,
              [](const std::shared_ptr<Worker>& worker) { return worker->is_waiting(); });
}

std::vector<RoundProcesses::StartFailure> RoundProcesses::start(const wire::RoundStart& round) {
  DDP_CHECK(!memory_, "round {} starts on top of round {}", round.round, round_);
  writers_.ranks_lost(round.lost_round, round.lost_ranks);
  starting_ = true;
  reap();
  starting_ = false;
  const int nproc = round.members.at(static_cast<std::size_t>(round.group_rank)).nproc;
  std::vector<StartFailure> failures;
  if (!cannot_start_.empty()) {
    for (int i = 0; i < nproc; ++i) failures.push_back({i, kExitInvalidValue, cannot_start_});
    return failures;
  }
  auto memory = RoundMemory::create(nproc, round.round, link_key(spec_, round.link_nonce));
  if (!memory) {
    for (int i = 0; i < nproc; ++i)
      failures.push_back({i, spawn_failure_status(memory.error()), memory.error().message});
    return failures;
  }
  memory_ = std::move(*memory);
  round_ = round.round;
  first_rank_ = round.members.at(static_cast<std::size_t>(round.group_rank)).first_rank;
  trace_.begin_round(*memory_, round_, first_rank_);
  standbys_due_ = true;
  // Output so far belongs to the round before.
  for (const auto& worker : workers_) worker->drain_output();
  output_.begin_round(round);
  if (spec_.output.status_line) {
    status_.begin_round({.round = round.round,
                         .restarts = round.restarts,
                         .max_restarts = round.max_restarts,
                         .nodes = static_cast<int>(round.members.size()),
                         .workers = round.world_size});
  }
  std::vector<std::shared_ptr<Worker>> kept = std::exchange(workers_, {});
  std::vector<int> to_start;
  for (int i = 0; i < nproc; ++i) {
    const auto worker = take_waiting(kept, i);
    if (!worker) {
      to_start.push_back(i);
      continue;
    }
    worker->take_place(round, i, memory_->fd());
    workers_.push_back(worker);
    if (checkpoint_wanted_) send_checkpoint_request(*worker);
    events_.on_hello(i, true);
  }
  for (const auto& worker : kept) worker->close();
  for (const int i : to_start) {
    auto worker = Worker::start(context_, round, i, memory_->fd());
    if (worker) {
      workers_.push_back(std::move(*worker));
    } else {
      failures.push_back({i, spawn_failure_status(worker.error()), worker.error().message});
    }
  }
  return failures;
}

void RoundProcesses::watch_states() {
  if (spec_.uninterruptible_ms <= 0) return;
  std::vector<pid_t> pids;
  for (const auto& worker : workers_) {
    if (worker->running()) pids.push_back(worker->pid());
  }
  for (const pid_t pid : states_.look(Clock::now(), pids)) {
    events_.on_stuck(find(pid)->exit_by_kill(
        fmt::format("in uninterruptible sleep, state D, for {:.3g} s "
                    "(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT)",
                    static_cast<double>(spec_.uninterruptible_ms) / 1'000)));
  }
  states_timer_.after(states_.period(), [this] { watch_states(); });
}

void RoundProcesses::fill_standbys() {
  if (!std::exchange(standbys_due_, false)) return;
  while (static_cast<int>(standbys_.size()) < spec_.standby) {
    auto standby = Worker::start_standby(context_, standbys_started_++);
    if (!standby) return print(fmt::format("no standby: {}", standby.error().message));
    standbys_.push_back(std::move(*standby));
  }
}

int RoundProcesses::standbys_ready() const {
  return static_cast<int>(
      std::count_if(standbys_.begin(), standbys_.end(),
                    [](const std::shared_ptr<Worker>& standby) { return standby->is_waiting(); }));
}

int RoundProcesses::running() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(),
                    [](const std::shared_ptr<Worker>& worker) { return worker->running(); }));
}

void RoundProcesses::on_exit(const Worker& worker, const WorkerExit& exit) {
  const auto standby =
      std::find_if(standbys_.begin(), standbys_.end(),
                   [&worker](const std::shared_ptr<Worker>& one) { return one.get() == &worker; });
  const bool is_standby = standby != standbys_.end();
  // If the worker ended just before the start, a new one already has its place, so only print it.
  if (!is_standby && !starting_) return events_.on_exit(exit);
  print(fmt::format("a {} process on {} (pid {}) ended with {} {}{}{}",
                    is_standby ? "standby" : "parked", spec_.host, exit.pid,
                    exit.signal != 0 ? "signal" : "status",
                    exit.signal != 0 ? exit.signal : exit.exit_code,
                    exit.message.empty() ? "" : ": ", exit.message));
  if (!is_standby) return;
  (*standby)->close();
  standbys_.erase(standby);
}

void RoundProcesses::on_message(Worker& worker, const wire::WorkerMessage& message) {
  if (const auto* snapshot = std::get_if<wire::SubmitSnapshot>(&message)) {
    return take_snapshot(worker, *snapshot);
  }
  const int local_rank = worker.local_rank();
  if (local_rank < 0) return;
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    if (checkpoint_wanted_) send_checkpoint_request(worker);
    events_.on_hello(local_rank, hello->reconfigurable);
  } else if (const auto* progress = std::get_if<wire::Progress>(&message)) {
    if (worker.reconfigurable()) fill_standbys();
    status_.on_progress(local_rank, *progress);
    events_.on_metrics(local_rank, *progress);
    events_.on_progress(local_rank, progress->step);
  } else if (const auto* joined = std::get_if<wire::Joined>(&message)) {
    events_.on_joined(local_rank, joined->round);
  } else if (const auto* parked = std::get_if<wire::Parked>(&message)) {
    events_.on_parked(local_rank, parked->round, parked->step);
  } else if (const auto* committed = std::get_if<wire::Committed>(&message)) {
    events_.on_committed(local_rank, committed->round, committed->step);
  }
}

void RoundProcesses::take_snapshot(Worker& worker, const wire::SubmitSnapshot& snapshot) {
  const std::weak_ptr<Worker> source = worker.weak_from_this();
  writers_.submit(worker.pid(), fmt::format("local rank {}", worker.local_rank()), round_, snapshot,
                  worker.take_descriptors(),
                  [this, source, round = round_, step = snapshot.step,
                   rank = first_rank_ + worker.local_rank()](const wire::SnapshotWritten& written) {
                    saved_.push_back({.round = round,
                                      .step = step,
                                      .bytes = written.bytes,
                                      .seconds = written.seconds,
                                      .published = !written.path.empty(),
                                      .error = written.error});
                    trace_.saved(rank, saved_.back());
                    const auto found = source.lock();
                    if (!found || !found->running()) return false;
                    found->send(written);
                    return true;
                  });
}

void RoundProcesses::request_checkpoint() {
  checkpoint_wanted_ = true;
  for (const auto& worker : workers_) send_checkpoint_request(*worker);
}

void RoundProcesses::send_checkpoint_request(Worker& worker) {
  if (!worker.running() || !worker.said_hello() || worker.is_waiting()) return;
  worker.send(wire::CheckpointRequest{});
  checkpoint_wanted_ = false;
}

void RoundProcesses::signal(int number, const std::string& abort_reason,
                            const std::set<int>& keep) {
  if (!abort_reason.empty()) {
    writers_.round_ended();
    if (memory_) memory_->abort(abort_reason);
    for (const auto& worker : workers_) {
      if (!worker->running() || worker->is_waiting()) continue;
      worker->send(wire::Abort{round_, abort_reason});
      worker->resume();
    }
  }
  for (const auto& worker : workers_) {
    if (!keep.contains(worker->local_rank())) worker->signal(number);
  }
}

void RoundProcesses::request_commit(const wire::CommitRequest& order, const std::set<int>& from) {
  for (const auto& worker : workers_) {
    if (worker->running() && from.contains(worker->local_rank())) worker->send(order);
  }
}

std::set<int> RoundProcesses::hung(const std::set<int>& local_ranks) const {
  std::set<int> hung = local_ranks;
  if (!memory_) return hung;
  for (const wire::Flight& flight : memory_->flights()) {
    if (!waits_for_others(flight)) continue;
    for (const auto& worker : workers_) {
      if (worker->pid() == flight.pid) hung.erase(worker->local_rank());
    }
  }
  return hung;
}

std::shared_ptr<Worker> RoundProcesses::of_local_rank(int local_rank) const {
  for (const auto& worker : workers_) {
    if (worker->local_rank() == local_rank) return worker;
  }
  return nullptr;
}

std::vector<std::string> RoundProcesses::waits() const {
  return memory_ ? long_waits(memory_->flights()) : std::vector<std::string>();
}

wire::Output RoundProcesses::output(int local_rank) const {
  const auto worker = of_local_rank(local_rank);
  if (worker == nullptr) return {};
  return {.out = worker->recent_output(), .err = worker->recent_errors()};
}

void RoundProcesses::dump_stacks(int local_rank) {
  if (const auto worker = of_local_rank(local_rank)) worker->dump_stacks();
}

void RoundProcesses::kill(int local_rank, const std::string& cause) {
  if (const auto worker = of_local_rank(local_rank)) worker->kill(cause);
}

void RoundProcesses::finish_output() { status_.end(); }

void RoundProcesses::expire(pid_t pid, int signal, const std::string& cause) {
  if (const auto worker = find(pid)) {
    worker->expire(signal, cause);
  } else if (!signal_descendant(pid, signal)) {
    print(
        fmt::format("a timer of process {} has expired, but the process does not belong to this "
                    "job; it is left alone",
                    pid));
  }
}

void RoundProcesses::print(const std::string& text) {
  if (!context_.spec.notices) return;
  output_.console(config::kStderr).print(fmt::format("ddp-run: {}", text));
}

std::shared_ptr<Worker> RoundProcesses::find(pid_t pid) const {
  for (const auto* group : {&workers_, &standbys_}) {
    for (const auto& worker : *group) {
      if (worker->running() && worker->pid() == pid) return worker;
    }
  }
  return nullptr;
}

void RoundProcesses::reap() {
  for (const auto& group : {workers_, standbys_}) {
    for (const auto& worker : group) worker->reap();
  }
}

void RoundProcesses::reap_orphans() {
  while (const pid_t pid = ended_child()) {
    const std::vector<pid_t> writers = writers_.pids();
    if (find(pid) || std::find(writers.begin(), writers.end(), pid) != writers.end()) {
      // Its ProcessWatch is about to tell. Until then it hides children that were started after it.
      return orphans_timer_.after(kHiddenPause, [this] { reap_orphans(); });
    }
    given_up_.erase(pid);
    ::waitpid(pid, nullptr, WNOHANG);
  }
}

bool RoundProcesses::kill_all_but(const std::vector<pid_t>& kept, Duration limit) {
  // How much longer than its limit a task may take to answer.
  constexpr Duration kAnswer{500};
  std::vector<std::shared_ptr<TaskHost>> tasks;
  for (int i = 1; context_.tasks != nullptr && i < spec_.nproc; ++i) {
    if (auto task = context_.tasks->of(i)) tasks.push_back(std::move(task));
  }
  for (const auto& task : tasks) task->begin_clear(kept, limit);
  bool complete = kill_descendants(kept, limit);
  const TimePoint deadline = Clock::now() + limit + kAnswer;
  for (const auto& task : tasks) complete = task->finish_clear(deadline) && complete;
  return complete;
}

std::vector<pid_t> RoundProcesses::kept_pids(const std::set<int>& keep) const {
  std::vector<pid_t> kept = writers_.pids();
  for (const auto& [pid, text] : given_up_) kept.push_back(pid);
  for (const auto& worker : workers_) {
    if (worker->is_waiting() && keep.contains(worker->local_rank())) kept.push_back(worker->pid());
  }
  return kept;
}

bool RoundProcesses::clear(const std::set<int>& keep, Duration limit) {
  std::vector<pid_t> kept = kept_pids(keep);
  for (const auto& standby : standbys_) kept.push_back(standby->pid());
  if (!kill_all_but(kept, limit)) return false;
  abandon(keep);
  return true;
}

bool RoundProcesses::clear_all(Duration limit) {
  if (!kill_all_but(kept_pids({}), limit)) return false;
  for (const auto& standby : std::exchange(standbys_, {})) standby->close();
  abandon();
  return true;
}

// Call before the memory is released: it holds what the other workers waited for when one failed.
void RoundProcesses::keep_flights() {
  operations_.clear();
  if (!memory_) return;
  const std::vector<wire::Flight> flights = memory_->flights();
  auto waits = last_waits(*memory_, flights);
  if (!waits) return;
  operations_ = std::move(*waits);
  if (spec_.log_dir.empty()) return;
  std::string lines;
  for (const wire::Flight& flight : flights) lines += wire::flight_json_lines(flight);
  output_.writer().run(
      [path = flight_log_path(spec_, round_), lines] { return append_to_log(path, lines); },
      output_.log_trouble("what the ranks waited for is only in the report"));
}

void RoundProcesses::give_up(const std::optional<std::set<int>>& keep, Duration killed_for) {
  const std::set<int> waiting = keep.value_or(std::set<int>{});
  std::vector<pid_t> kept = kept_pids(waiting);
  for (const auto& standby : standbys_) {
    if (keep) kept.push_back(standby->pid());
  }
  // A process that removes old checkpoints holds nothing that a worker needs.
  const std::vector<pid_t> removers = descendants_with(config::kSnapshotWriterMark);
  kept.insert(kept.end(), removers.begin(), removers.end());
  std::map<pid_t, std::string> left;
  for (const pid_t pid : living_children(kept)) left[pid] = "process";
  for (const auto& worker : workers_) {
    // Workers in tasks of srun are not children of this process.
    if (worker->running() && !worker->is_waiting())
      left[worker->pid()] = fmt::format("worker local rank {}", worker->local_rank());
  }
  for (const auto& [pid, name] : left) {
    given_up_[pid] = fmt::format("{} (pid {}) did not end {:.0f} s after SIGKILL{}", name, pid,
                                 static_cast<double>(killed_for.count()) / 1'000, state_text(pid));
    print(fmt::format("on {}, {}; ddp-run gives it up", spec_.host, given_up_[pid]));
  }
  abandon(waiting);
}

std::string RoundProcesses::unkillable() const {
  std::vector<std::string> texts;
  for (const auto& [pid, text] : given_up_) {
    if (is_alive(pid)) texts.push_back(text);
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

void RoundProcesses::abandon(const std::set<int>& keep) {
  writers_.round_ended();
  keep_flights();
  const auto ended = std::stable_partition(
      workers_.begin(), workers_.end(), [&keep](const std::shared_ptr<Worker>& worker) {
        return worker->is_waiting() && keep.contains(worker->local_rank());
      });
  std::for_each(ended, workers_.end(),
                [](const std::shared_ptr<Worker>& worker) { worker->close(); });
  workers_.erase(ended, workers_.end());
  context_.memory_kills.claim_all();
  trace_.end_round();
  memory_.reset();
}

}  // namespace ddp::agent
