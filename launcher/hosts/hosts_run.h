#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include "common/net/timer.h"
#include "launcher/hosts/hosts_plan.h"
#include "launcher/hosts/hosts_status.h"
#include "launcher/hosts/launcher.h"
#include "launcher/hosts/output_writer.h"
#include "launcher/node/job_trace.h"
#include "launcher/node/page_file.h"
#include "launcher/server/server.h"

namespace ddp::hosts {

// Runs a job with --hosts for the person who typed it: starts the nodes, hosts their rendezvous,
// passes on their output in whole lines, passes signals to them, and prints the one report. One
// thread with one io_context, plus one thread for each output stream.
class HostsRun {
 public:
  // `server`: the rendezvous of plan.job; null where it runs elsewhere.
  HostsRun(asio::io_context& io, HostsPlan plan, LaunchAgent agent,
           std::unique_ptr<server::Server> server);

  // Runs the job to its end; gives the exit status. Afterwards nothing of the job is left on any
  // host that could be reached. The plan says which signals end the job, and which signal
  // asks the workers for a checkpoint. After a third signal of the former it no longer waits for
  // the hosts.
  int run();

 private:
  std::shared_ptr<OutputWriter> writer(int fd);
  void on_report(const NodeReport& report);
  void on_gone(const NodeReport& report);
  void on_node_end(const NodeReport& report);
  void on_success();
  void tell_of_first_end_later();
  void tell_of_first_end();
  void on_job_finished(const wire::Finish& finish);
  void on_line(Launcher::Stream stream, std::string_view line);
  void wait_for_signal();
  void on_signal(int signal);
  void fail(int exit_code, const std::string& why);
  void look_at_the_end();
  void tell_unreached_later();
  void say(const std::string& text);
  void notice(const std::string& text);  // Like say(), but silent with LOGLEVEL=ERROR.
  void conclude();

  asio::io_context& io_;
  HostsPlan plan_;
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<OutputWriter> output_;
  std::shared_ptr<OutputWriter> error_;  // One object if both are the same terminal or pipe.
  std::optional<HostsStatus> status_;
  Launcher launcher_;
  node::JobTrace trace_;
  node::PageFile page_file_;
  asio::signal_set signals_;
  net::Timer patience_;  // After the end: when it fires, a line says who is still waited for.
  net::Timer notice_;    // For the line that names hosts that are not reached yet.
  net::Timer going_on_;  // For the line about a host without which the job goes on.
  std::set<std::string> unreached_;
  int open_ = 0;                         // Hosts that may still take part.
  std::optional<wire::Finish> finish_;   // The result from the rendezvous in this process.
  std::optional<wire::Finish> failure_;  // The result that this process has decided.
  std::optional<NodeReport> first_end_;  // The first node that ended with a failure.
  bool first_end_told_ = false;
  int interrupted_by_ = 0;
  int interrupts_ = 0;
};

// Plans and runs a job with --hosts. Gives the exit status.
int run_on_hosts(const flags::Options& options, const machine::Machine& machine);

}  // namespace ddp::hosts
