#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include "common/net/timer.h"
#include "launcher/ddp_run/hosts_plan.h"
#include "launcher/ddp_run/hosts_status.h"
#include "launcher/hosts/launcher.h"
#include "launcher/hosts/output_writer.h"
#include "launcher/server/server.h"

namespace ddp::run {

// The part of a job that the person sees who has typed --hosts: starts the nodes, hosts their
// rendezvous, passes their output on in whole lines, passes signals to them, prints the one report.
// One thread, one io_context; and one thread a stream of output.
class HostsRun {
 public:
  // `server`: the rendezvous of plan.job; null where it runs elsewhere.
  HostsRun(asio::io_context& io, HostsPlan plan, hosts::LaunchAgent agent,
           std::unique_ptr<server::Server> server);

  // To the end of the job; gives the exit status. No host has anything left of it then, as far as
  // it could be reached. SIGTERM, SIGINT, SIGHUP and SIGQUIT end the job; after a third one hosts
  // are not waited for.
  int run();

 private:
  std::shared_ptr<hosts::OutputWriter> writer(int fd);
  void on_report(const hosts::NodeReport& report);
  void on_gone(const hosts::NodeReport& report);
  void on_node_end(const hosts::NodeReport& report);
  void on_job_finished(const wire::Finish& finish);
  void on_line(hosts::Launcher::Stream stream, std::string_view line);
  void wait_for_signal();
  void on_signal(int signal);
  void fail(int exit_code, const std::string& why);
  void look_at_the_end();
  void tell_unreached_later();
  void say(const std::string& text);
  void notice(const std::string& text);  // As say(), unless LOGLEVEL wants failures only.
  void conclude();

  asio::io_context& io_;
  HostsPlan plan_;
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<hosts::OutputWriter> output_;
  std::shared_ptr<hosts::OutputWriter> error_;  // One object if both are the same terminal or pipe.
  std::optional<HostsStatus> status_;
  hosts::Launcher launcher_;
  asio::signal_set signals_;
  net::Timer patience_;  // After the end: until it is said who is waited for.
  net::Timer notice_;    // While hosts are not reached.
  std::set<std::string> unreached_;
  int open_ = 0;                                // Hosts that may take part still.
  std::optional<wire::Finish> finish_;          // What the rendezvous here has decided,
  std::optional<wire::Finish> failure_;         // what this process has,
  std::optional<hosts::NodeReport> first_end_;  // and the first bad end of a node.
  int interrupted_by_ = 0;
  int interrupts_ = 0;
};

// Plans and runs what --hosts says.
int run_on_hosts(const Options& options, const Machine& machine);

}  // namespace ddp::run
