#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"
#include "common/process/descendants.h"
#include "common/process/life_signs.h"
#include "launcher/hosting/moving_hosting.h"
#include "launcher/node/agent_process.h"
#include "launcher/node/job_trace.h"
#include "launcher/node/notices.h"
#include "launcher/node/page_file.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"
#include "launcher/slurm/step/requeue.h"

namespace ddp::node {

// Runs one node's part of a job until it is over: starts the agent, starts another if that one is
// lost, forwards signals, and prints the report. One thread, one io_context. This process must be a
// child subreaper. Children that it has when the object is made, such as a `tee` of the script that
// has become ddp-run, are nobody's here.
class Supervisor {
 public:
  // `server`: the rendezvous that this process hosts, or null. Null with plan.etcd.
  Supervisor(asio::io_context& io, plan::JobPlan plan, std::unique_ptr<server::Server> server);

  // Passes the node's result to `tell` instead of printing it.
  using TellEnd = std::function<void(int exit_code, const std::string& summary,
                                     const std::string& report, const std::string& error)>;
  void tell_end_to(TellEnd tell) { tell_end_ = std::move(tell); }

  // Runs to the end of the job and gives the exit status. Afterwards nothing of the job is left on
  // this node. The plan says which signals end the node's part, and which signal asks the workers
  // for a checkpoint. If SLURM can start the job again, that signal also stops the workers after
  // the checkpoint.
  int run();
  // The run was stopped so that SLURM can start the job again; run() has returned kExitRequeue.
  bool to_be_continued() const { return to_be_continued_; }
  // The rendezvous was in this process when the node's part was over.
  bool has_hosted() const { return has_hosted_; }
  // The plan with the coordinator's address filled in.
  const plan::JobPlan& plan() const { return plan_; }

 private:
  void start_etcd();
  void start_replicas();
  hosting::MovingHosting::Events hosting_events();
  void on_coordinator(const std::string& host, int port);
  void start_agent();
  void on_agent_end(const AgentEnd& end);
  void on_agent_lost(const std::string& how);
  void on_job_finished(const wire::Finish& finish);
  void wait_for_signal();
  void on_signal(int signal);
  void want_checkpoint();
  void on_warning();
  void trace_whole_job();
  void trace_next_steps();
  bool is_to_be_continued(int exit_code) const;
  void kill_when_overdue();
  // The end: tells the other nodes if they depend on this process, prints the result, and gives the
  // others time to read. `error` goes to the launcher above this one, if there is one.
  void conclude(int exit_code, const std::string& summary, const std::string& report,
                const std::string& error = "");
  void conclude(const wire::Finish& finish);
  void conclude(const config::AgentResult& result);
  bool prints_report() const;
  // The rendezvous, while it runs in this process.
  server::Server* server() const { return moving_ ? moving_->server() : server_.get(); }
  bool job_outlives_this_node() const { return moving_ && moving_->outlives_this_node(); }
  bool is_orphan(pid_t pid) const;
  void adopt_orphans();
  bool look_after_orphans();
  void say_farewell();
  void notice(const std::string& text);  // Silent with LOGLEVEL=ERROR.

  asio::io_context& io_;
  plan::JobPlan plan_;
  std::unique_ptr<server::Server> server_;
  std::unique_ptr<hosting::MovingHosting> moving_;  // If the coordinator can move.
  UniqueFd scratch_;                                // Holds the lock of this node's scratch folder.
  std::unique_ptr<AgentProcess> agent_;
  Notices notices_{STDERR_FILENO};
  JobTrace trace_;
  PageFile page_file_;
  asio::signal_set signals_;
  net::Timer timer_;  // After a signal: until the agent is killed. After a loss: until the
                      // coordinator has decided.
  std::optional<wire::Finish> finish_;  // Only if this process hosts the rendezvous.
  // The agent's, if this node's part is over and only the rendezvous here goes on for the others.
  std::optional<config::AgentResult> done_;
  int lost_agents_ = 0;
  // Processes of lost agents that are finishing a checkpoint. They are our children and not reaped
  // yet.
  std::vector<std::pair<pid_t, LifeSigns>> orphans_;
  const std::vector<pid_t> inherited_ =
      living_children({});          // From before this process was ddp-run.
  bool checkpoint_wanted_ = false;  // A request that came while there was no agent.
  int interrupted_by_ = 0;          // The first signal.
  const std::int64_t wall_at_start_ = static_cast<std::int64_t>(std::time(nullptr));
  const TimePoint started_ = Clock::now();
  slurm::Stop stop_;  // What decides whether a step's job goes on later.
  bool to_be_continued_ = false;
  bool has_hosted_ = false;
  TellEnd tell_end_;  // Null: the result is printed.
  std::optional<int> exit_code_;
};

}  // namespace ddp::node
