#include "launcher/node/supervisor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "common/base/signal_name.h"
#include "common/config/scratch_folder.h"
#include "common/config/snapshot_writer_mark.h"
#include "common/process/descendants.h"
#include "common/process/this_process.h"
#include "launcher/hosting/etcd_hosting.h"
#include "launcher/hosting/replica_hosting.h"
#include "launcher/node/error_above.h"
#include "launcher/node/scratch_claim.h"

namespace ddp::node {
namespace {

// How much longer an agent may take to end than its workers may take to stop.
constexpr Duration kGrace{10'000};
// How long nodes that are still connected may take to read how the job ended.
constexpr Duration kDrainLimit{5'000};
// A process that writes a checkpoint is given up after this long without a sign of life.
constexpr Duration kQuietLimit{60'000};
constexpr Duration kOrphanLook{50};

}  // namespace

Supervisor::Supervisor(asio::io_context& io, plan::JobPlan plan,
                       std::unique_ptr<server::Server> server)
    : io_(io),
      plan_(std::move(plan)),
      server_(std::move(server)),
      trace_(
          plan_, [this](const std::string& text) { notice(text); },
          [this](const std::string& text) { notices_.print("ddp-run: " + text); }),
      page_file_(plan_),
      signals_(io),
      timer_(io) {
  std::vector<int> wanted = plan_.spec.signals;
  if (plan_.spec.checkpoint_signal != 0) wanted.push_back(plan_.spec.checkpoint_signal);
  if (JobTrace::is_free(plan_.spec)) wanted.push_back(JobTrace::kSignal);
  for (const int signal : wanted) {
    if (!is_ignored(signal)) signals_.add(signal);
  }
}

int Supervisor::run() {
  if (server_) {
    server_->on_job_finished([this](const std::string& job_id, const wire::Finish& finish) {
      if (job_id == plan_.spec.job_id) on_job_finished(finish);
    });
    trace_whole_job();
    if (const std::string place = plan::where_to_watch(plan_); !place.empty()) notice(place);
  }
  wait_for_signal();
  if (plan_.etcd) {
    start_etcd();
  } else {
    if (plan_.replicas > 1) start_replicas();
    if (!exit_code_) start_agent();
  }
  io_.run();
  notices_.flush();  // The job is over, so a slow reader delays only this process.
  return exit_code_.value_or(kExitInternal);
}

// The agent starts once the coordinator is known.
void Supervisor::start_etcd() {
  auto etcd = hosting::EtcdHosting::create(io_, plan_, hosting_events());
  if (!etcd) return conclude(exit_code_of(etcd.error()), etcd.error().message, "");
  moving_ = std::move(*etcd);
  moving_->start();
}

// The agent starts at once, because it is known where the coordinator is at first.
void Supervisor::start_replicas() {
  auto replicas = hosting::ReplicaHosting::create(io_, plan_, std::move(server_), hosting_events());
  if (!replicas) return conclude(exit_code_of(replicas.error()), replicas.error().message, "");
  plan_.spec.replica_port = (*replicas)->port();
  moving_ = std::move(*replicas);
  moving_->start();
}

hosting::MovingHosting::Events Supervisor::hosting_events() {
  return {.coordinator = [this](const std::string& host, int port) { on_coordinator(host, port); },
          .job_finished = [this](const wire::Finish& finish) { on_job_finished(finish); },
          .failed = [this](int exit_code, const std::string& why) { conclude(exit_code, why, ""); },
          .notice = [this](const std::string& text) { notice(text); }};
}

void Supervisor::on_coordinator(const std::string& host, int port) {
  plan_.spec.coordinator_host = host;
  plan_.spec.coordinator_port = port;
  trace_whole_job();
  if (agent_) {
    agent_->tell_coordinator(host, port);
  } else if (done_) {
    // Nothing of this node is needed any more.
    if (server() == nullptr && !exit_code_) conclude(*done_);
  } else if (!exit_code_ && lost_agents_ == 0) {
    start_agent();
  }
}

void Supervisor::start_agent() {
  scratch_ = claim_scratch_folder(plan_.spec.node_id);
  plan_.spec.successor = lost_agents_ > 0;
  auto agent = AgentProcess::start(
      io_, agent_program(), plan_.spec, [this](const AgentEnd& end) { on_agent_end(end); },
      plan_.tasks_fd);
  if (!agent) {
    config::remove_scratch_folder(config::scratch_folder(plan_.spec.node_id));
    return conclude(kExitInternal, agent.error().message, "");
  }
  agent_ = std::move(*agent);
  if (std::exchange(checkpoint_wanted_, false)) want_checkpoint();
}

void Supervisor::on_agent_end(const AgentEnd& end) {
  agent_.reset();
  timer_.cancel();
  // Ends what a lost agent left behind; an agent that reported has left nothing. Checkpoints that a
  // lost agent was writing are finished.
  std::vector<pid_t> kept = inherited_;
  if (!end.result) adopt_orphans();
  for (const auto& [pid, signs] : orphans_) kept.push_back(pid);
  kill_descendants(kept);
  config::remove_scratch_folder(config::scratch_folder(plan_.spec.node_id));
  if (!end.result) return on_agent_lost(end.how);
  stop_.has_checkpoint = end.result->has_checkpoint;
  stop_.at_time_limit = end.result->at_time_limit;
  // The others need the rendezvous in this process, where this node does not wait for them
  // (TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT) and where they do without its workers.
  const bool has_finished = end.result->exit_code == kExitSuccess;
  const bool others_go_on =
      plan_.spec.rules.max_nodes > 1 && (has_finished || end.result->exit_code == kExitUnfit);
  if (others_go_on && server() != nullptr && !finish_) {
    done_ = *end.result;
    return notice((has_finished ? "" : done_->summary + "; ") +
                  "the rendezvous runs here until the others have finished");
  }
  // The refusal follows from the loss: the job ended before the new agent had joined.
  if (end.result->exit_code == kExitRefused && lost_agents_ > 0) {
    if (finish_) return conclude(*finish_);
    return conclude(kExitNodeLost, end.result->summary, "");
  }
  conclude(*end.result);
}

void Supervisor::on_agent_lost(const std::string& how) {
  ++lost_agents_;
  if (plan_.spec.output.status_line) notices_.erase_status();
  const std::string lost = fmt::format("the agent on {} was lost: {}", plan_.spec.host, how);
  if (finish_) return conclude(*finish_);
  if (interrupted_by_ != 0) return conclude(kExitSignalBase + interrupted_by_, lost, "");
  if (lost_agents_ <= plan_.spec.rules.max_restarts) {
    notice(fmt::format("{}; starting another", lost));
    return start_agent();
  }
  const std::string summary =
      fmt::format("{}; --max-restarts {} is used up", lost, plan_.spec.rules.max_restarts);
  if (server() == nullptr) return conclude(kExitNodeLost, summary, "");
  // Waits a while, because the coordinator ends the job once it knows of the loss, and its report
  // says more.
  timer_.after(Duration(plan_.spec.rules.stop_timeout_ms) + kGrace,
               [this, summary] { conclude(kExitNodeLost, summary, ""); });
}

void Supervisor::on_job_finished(const wire::Finish& finish) {
  finish_ = finish;
  if (!agent_ && !exit_code_) conclude(finish);
}

void Supervisor::wait_for_signal() {
  signals_.async_wait([this](const std::error_code& error, int signal) {
    if (error) return;
    wait_for_signal();
    if (signal == plan_.spec.checkpoint_signal) {
      on_warning();
    } else if (signal == JobTrace::kSignal && JobTrace::is_free(plan_.spec)) {
      trace_next_steps();
    } else {
      // A node that was warned ends anyway, so the SIGTERM at the end of the job's time is not a
      // second request.
      const bool announced = stop_.warned && !stop_.terminated && signal == SIGTERM;
      stop_.terminated = stop_.terminated || signal == SIGTERM;
      if (!announced) on_signal(signal);
    }
  });
}

void Supervisor::trace_whole_job() {
  if (server() != nullptr) trace_.whole_job(*server());
}

void Supervisor::trace_next_steps() {
  if (exit_code_) return;
  if (server() != nullptr && server()->job_status(plan_.spec.job_id))
    return trace_.next_steps(*server());
  if (tell_end_) return;  // All nodes have got the signal.
  notice(fmt::format("no trace from here: run ddp-run trace {}",
                     host_and_port(plan_.spec.coordinator_host, plan_.spec.coordinator_port)));
}

// SLURM sends the warning signal to all nodes, so all of them stop.
void Supervisor::on_warning() {
  if (!plan_.requeue) return want_checkpoint();
  if (std::exchange(stop_.warned, true) || exit_code_) return;
  on_signal(SIGTERM);
}

bool Supervisor::is_to_be_continued(int exit_code) const {
  if (!plan_.requeue) return false;
  slurm::Stop stop = stop_;
  stop.exit_code = exit_code;
  stop.warning = plan_.spec.checkpoint_signal;
  // The wall clock may have been set since.
  stop.now =
      wall_at_start_ + std::chrono::floor<std::chrono::seconds>(Clock::now() - started_).count();
  return slurm::is_to_be_continued(stop, plan_.step->end_time);
}

void Supervisor::want_checkpoint() {
  if (agent_) {
    agent_->signal(plan_.spec.checkpoint_signal);
  } else {
    checkpoint_wanted_ = true;
  }
}

// Kills an agent that does not end in time. Writing checkpoints does not count: the agent limits
// that itself.
void Supervisor::kill_when_overdue() {
  if (!agent_) return;
  const std::vector<pid_t> writers = descendants_with(config::kSnapshotWriterMark);
  if (std::all_of(writers.begin(), writers.end(), [this](pid_t pid) { return is_orphan(pid); })) {
    return agent_->signal(SIGKILL);
  }
  timer_.after(LifeSigns::kLook, [this] { kill_when_overdue(); });
}

void Supervisor::on_signal(int signal) {
  if (exit_code_)
    return io_.stop();  // Everything is over; only the other nodes still read what was sent.
  const bool first = interrupted_by_ == 0;
  if (first) interrupted_by_ = signal;
  if (first && server() != nullptr) page_file_.job_is_stopped(*server());
  if (!agent_) {
    return conclude(kExitSignalBase + signal,
                    fmt::format("node {} was stopped by {}", plan_.spec.host, signal_name(signal)),
                    "");
  }
  agent_->signal(signal);
  if (!first) return;
  timer_.after(Duration(plan_.spec.rules.stop_timeout_ms) + kGrace,
               [this] { kill_when_overdue(); });
}

bool Supervisor::prints_report() const {
  return server() != nullptr || plan_.spec.rules.max_nodes == 1 || plan_.spec.node_rank == 0;
}

void Supervisor::conclude(const wire::Finish& finish) {
  conclude(finish.exit_code, finish.summary, finish.report, finish.error);
}

void Supervisor::conclude(const config::AgentResult& result) {
  conclude(result.exit_code, result.summary, result.report, result.error);
}

void Supervisor::conclude(int exit_code, const std::string& summary, const std::string& report,
                          const std::string& error) {
  if (is_to_be_continued(exit_code)) {
    to_be_continued_ = true;
    exit_code = kExitRequeue;
  }
  exit_code_ = exit_code;
  has_hosted_ = server() != nullptr;
  timer_.cancel();
  if (tell_end_) {
    tell_end_(exit_code, summary, report, error);
  } else if (exit_code != kExitSuccess && !(plan_.is_check && exit_code == kExitUnfit)) {
    tell_launcher_above(exit_code, summary, error);
    notices_.print(prints_report() && !report.empty() ? report
                                                      : fmt::format("ddp-run: {}", summary));
  }
  const bool goes_on = job_outlives_this_node() && !finish_;
  if (server() != nullptr && !goes_on && !finish_) {
    server()->end_job(plan_.spec.job_id, exit_code, summary);
  }
  if (server() == nullptr || goes_on) return say_farewell();
  if (const auto kept = page_file_.write(*server(), exit_code, summary); !kept)
    notices_.print("ddp-run: " + kept.error().message);
  server()->drain(kDrainLimit, [this, exit_code, summary] {
    // It may have lost the job to another coordinator meanwhile, which the browsers then ask.
    if (server() == nullptr) return say_farewell();
    page_file_.show(*server(), exit_code, summary, [this] { say_farewell(); });
  });
}

void Supervisor::notice(const std::string& text) {
  if (plan_.spec.notices) notices_.print("ddp-run: " + text);
}

bool Supervisor::is_orphan(pid_t pid) const {
  return std::any_of(orphans_.begin(), orphans_.end(),
                     [pid](const auto& orphan) { return orphan.first == pid; });
}

// A lost agent's children have become children of this process.
void Supervisor::adopt_orphans() {
  for (const pid_t pid : descendants_with(config::kSnapshotWriterMark)) {
    if (!is_orphan(pid)) orphans_.emplace_back(pid, LifeSigns(pid, kQuietLimit, kOrphanLook));
  }
}

// True once none of them writes any more.
bool Supervisor::look_after_orphans() {
  std::erase_if(orphans_, [this](auto& orphan) {
    const pid_t pid = orphan.first;
    // It is our child and not reaped, so its process id cannot have been reused.
    if (::waitpid(pid, nullptr, WNOHANG) != 0) return true;
    if (orphan.second.check()) return false;
    notice(
        fmt::format("process {}, which writes a checkpoint, has done nothing for {} s; it is given "
                    "up",
                    pid, kQuietLimit.count() / 1'000));
    if (pid > 1) ::kill(pid, SIGKILL);
    return true;
  });
  return orphans_.empty();
}

void Supervisor::say_farewell() {
  if (!look_after_orphans()) return timer_.after(kOrphanLook, [this] { say_farewell(); });
  if (server() != nullptr) server()->end_traces();
  if (!moving_) return io_.stop();
  moving_->end([this] { io_.stop(); });
}

}  // namespace ddp::node
