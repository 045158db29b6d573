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

#include "common/net/timer.h"
#include "launcher/hosts/host_process.h"
#include "launcher/hosts/launch_agent.h"
#include "launcher/hosts/line_assembler.h"
#include "launcher/hosts/node_order.h"

namespace ddp::hosts {

// Starts ddp-run on hosts, all at once, and keeps the connections to them. One of many hosts starts
// others (launch_tree.h); what becomes of those is told here as well. One thread, that of `io`.
class Launcher {
 public:
  using Stream = HostProcess::Stream;
  struct Events {
    // Of each host kReached, unless it cannot be reached, and at the end one of the other kinds.
    std::function<void(const NodeReport& report)> on_report;
    // A line of output, with its newline.
    std::function<void(Stream stream, std::string_view line)> on_line;
    // Once, from the event loop: every connection has ended.
    std::function<void()> on_all_ended;
  };

  // `order` is for all hosts; its places are cut up.
  Launcher(asio::io_context& io, NodeOrder order, LaunchAgent agent, Events events);

  // Starts them. `first_is_here`: that of the first place is a child, without the launch agent, as
  // are in any case "localhost" and this machine's own name where ssh would be used.
  void start(bool first_is_here = false);

  // The others are to take this signal for their own. Who is not reached yet is given up, unless it
  // is SIGUSR1.
  void signal(int signal);
  // Ends the connections: the others end as if their terminal had gone.
  void hang_up();
  // Gives up waiting.
  void kill();
  void pause_reading();
  void resume_reading();

  // Hosts of which nothing final was told, for people.
  std::vector<std::string> open_hosts() const;
  bool all_ended() const { return children_.empty(); }

 private:
  struct Child {
    explicit Child(asio::io_context& io) : limit(io) {}
    std::vector<NodePlace> group;  // The first is at the other end of the connection.
    std::set<std::string> open;    // Those of which nothing final was told.
    std::string agent;             // What the connection is, for messages.
    std::shared_ptr<HostProcess> process;
    LineAssembler output;
    LineAssembler error;
    bool reached = false;
    std::deque<std::string> said;  // Standard error before that.
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

// The command that each host's part is started by, quoted for a shell: what --dry-run shows. The
// order itself goes to standard input. With many hosts, those behind a group's first are started
// from there.
std::vector<std::string> launch_commands(const std::vector<NodePlace>& places,
                                         const LaunchAgent& agent, const std::string& program);

}  // namespace ddp::hosts
