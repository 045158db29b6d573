#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include "agent/core/agent_core.h"
#include "agent/process/console.h"
#include "agent/process/process_watch.h"
#include "agent/process/round_processes.h"
#include "agent/process/task_hosts.h"
#include "agent/shell/coordinator_feed.h"
#include "agent/shell/coordinator_link.h"
#include "agent/shell/event_log.h"
#include "agent/shell/health_check.h"
#include "agent/shell/store_door.h"
#include "agent/shell/worker_store.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"
#include "common/net/timer.h"

namespace ddp::agent {

struct AgentStart {
  config::JobSpec spec;
  UniqueFd result_fd;  // AgentResult is written there once, as CBOR.
  pid_t parent = 0;    // ddp-run. Its end is reported to the core by on_parent_lost.
  // From an earlier agent that was lost.
  Round last_round = kNoRound;
  int restarts = 0;
  UniqueFd tasks_fd;  // TaskHosts' listener; empty if workers are the agent's children.
  std::shared_ptr<const net::TlsContext> tls;  // Made from spec.tls.
  UniqueFd coordinator_fd;  // For CoordinatorFeed; empty if the coordinator never moves.
};

// Carries out what AgentCore decides: sockets, timers, signals, processes. One thread, the main
// thread, around one io_context. This process must be a child subreaper, ignore SIGPIPE, have no
// children, and may have the job's signals blocked until run() has their handlers.
class AgentShell {
 public:
  AgentShell(asio::io_context& io, AgentStart start);

  // Runs the agent to its end and returns its exit status. Nothing of the job is left on this node
  // then (except the writers of checkpoints, if ddp-run was lost), and the result is written.
  int run();

 private:
  // Tells the core what happened, and returns its actions.
  using Event = std::function<std::vector<Action>(TimePoint now)>;

  // Queues an event. It waits while actions of an earlier event are carried out.
  void tell(Event event);
  void arm_timer();
  void wait_for_signal();
  void wait_for_child();
  void watch_parent();
  void on_parent_lost();
  void start_core();
  void wait_for_checkpoint_moment();
  void wait_for_tasks();
  void listen_for_health_checks();
  void lead_to_store(wire::RoundStart& round);
  void show_output(const wire::ShowOutput& request);
  void show_trace(const wire::ReadTrace& question);
  void tell_rest_of_trace(const wire::AgentMessage& message);

  void perform(const Connect& action);
  void perform(const Disconnect& action);
  void perform(const SendToCoordinator& action);
  void perform(const SpawnWorkers& action);
  void perform(const SignalWorkers& action);
  void perform(const KillWorkers& action);
  void perform(const ClearRound& action);
  void perform(const RequestCommit& action);
  void perform(const RequestCheckpoint& action);
  void perform(const FindHung& action);
  void perform(const DumpStacks& action);
  void perform(const KillWorker& action);
  void perform(const Print& action);
  void perform(const Exit& action);

  RoundProcesses::Events worker_events();
  // Clears until nothing is left of the round except the workers in `keep` (or nothing at all, if
  // `keep` has no value), then calls back. After `limit` it prints what is left and calls back,
  // too.
  struct Clearing {
    std::optional<std::set<int>> keep;
    Duration limit;
    Duration killed_for{0};  // SIGKILL was sent so long before.
    TimePoint since = Clock::now();
  };
  void clear_processes(const Clearing& clearing, std::function<void()> done);
  void finish(const config::AgentResult& result);
  void flush_output(std::function<void()> done);
  void write_result(const config::AgentResult& result);
  void print(const std::string& text);

  asio::io_context& io_;
  const config::JobSpec spec_;
  UniqueFd result_fd_;
  const pid_t parent_;
  AgentCore core_;
  Console::Pair console_;
  std::optional<TaskHosts> tasks_;
  RoundProcesses processes_;
  EventLog event_log_;
  WorkerStore store_;
  const net::Credentials credentials_;
  CoordinatorLink link_;
  StoreDoor store_door_;
  std::optional<CoordinatorFeed> feed_;
  std::optional<HealthCheck> health_;
  net::Timer tick_;
  net::Timer clear_timer_;
  net::Timer checkpoint_timer_;
  net::Timer trace_timer_;  // When it fires, nobody has asked for the trace for a while.
  asio::signal_set user_signals_;
  asio::signal_set child_signal_;
  std::shared_ptr<ProcessWatch> parent_end_;
  std::deque<Event> events_;
  bool performing_ = false;
  bool hurried_ = false;  // The user or ddp-run wants the agent to end.
  std::optional<int> exit_code_;
};

}  // namespace ddp::agent
