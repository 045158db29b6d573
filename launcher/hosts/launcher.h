#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/line_assembler.h"
#include "common/net/timer.h"
#include "launcher/hosts/host_process.h"
#include "launcher/hosts/node_order.h"
#include "launcher/hosts/syntax/launch_agent.h"

namespace ddp::hosts {

// Starts ddp-run on hosts, all at once, and keeps the connections to them. If there are many hosts,
// hosts start other hosts (launch_tree.h); their reports arrive here, too. For one thread, that of
// `io`.
class Launcher {
 public:
  using Stream = HostProcess::Stream;
  struct Events {
    // For each host: kReached, unless it cannot be reached, and finally one of the other kinds.
    std::function<void(const NodeReport& report)> on_report;
    // A line of output, with its newline.
    std::function<void(Stream stream, std::string_view line)> on_line;
    // Called once, from the event loop, when every connection has ended.
    std::function<void()> on_all_ended;
  };

  // `order` is for all hosts. The launcher divides its places among them.
  Launcher(asio::io_context& io, NodeOrder order, LaunchAgent agent, Events events);

  // Starts the hosts. `first_is_here`: the first place is started as a child, without the launch
  // agent. Otherwise, if the launch agent is ssh, the same holds for "localhost" and this machine's
  // own name.
  void start(bool first_is_here = false);

  // Sends a signal to the ddp-runs on the hosts. Hosts that are not reached yet are given up,
  // unless it is the order's checkpoint signal.
  void signal(int signal);
  // Closes the connections. The ddp-runs on the hosts end as if their terminal was gone.
  void hang_up();
  // Gives up waiting: kills the connections' processes.
  void kill();
  void pause_reading();
  void resume_reading();

  // Hosts without a final report, for messages.
  std::vector<std::string> open_hosts() const;

 private:
  struct Child {
    explicit Child(asio::io_context& io) : limit(io) {}
    std::vector<NodePlace> group;  // The first place is at the other end of the connection.
    std::set<std::string> open;    // Hosts without a final report.
    std::string agent;             // The connection's program, for messages.
    std::shared_ptr<HostProcess> process;
    LineAssembler output;
    LineAssembler error;
    bool reached = false;
    std::deque<std::string> said;  // Standard error before the host was reached.
    std::string given_up;          // Why it was killed; empty if it was not.
    net::Timer limit;
  };
  using ChildPlace = std::list<Child>::iterator;

  void start_group(std::vector<NodePlace> group, bool here);
  void on_bytes(ChildPlace child, Stream stream, std::string_view bytes);
  void on_line(ChildPlace child, Stream stream, std::string_view line);
  void take_report(ChildPlace child, std::string_view line);
  void on_end(ChildPlace child, int status);
  std::string why_ended(const Child& child, int status) const;
  void tell(NodeReport::Kind kind, const std::string& host, const std::string& why);
  void check_all_ended();

  asio::io_context& io_;
  const NodeOrder order_;
  const LaunchAgent agent_;
  Events events_;
  std::list<Child> children_;
  bool stopping_ = false;
  bool paused_ = false;
  bool end_told_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For what is posted.
};

// A random mark for the reports of one launch.
std::string make_mark();

// The command that starts each host's part, quoted for a shell, for --dry-run. The order itself
// goes to standard input. With many hosts, the first host of a group starts the rest of the group.
std::vector<std::string> launch_commands(const std::vector<NodePlace>& places,
                                         const LaunchAgent& agent, const std::string& program);

}  // namespace ddp::hosts
