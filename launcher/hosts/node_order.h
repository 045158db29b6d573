#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/hosts/launch_tree.h"

// What passes between a ddp-run that starts others (the launcher) and those it has started, over
// their standard input and output. README.md has the conversation. Pure.
namespace ddp::hosts {

// argv of a ddp-run that is started by another one, beside the program's path.
inline constexpr std::string_view kStartedFlag = "--started-by-ddp-run";

// The first frame on its standard input: all that it has to know, so that no argument passes
// through a shell and no secret through an argument list.
struct NodeOrder {
  std::string mark;          // Random; begins the lines that are reports and not output.
  std::string program;       // Path of ddp-run, the same on all hosts.
  std::string folder;        // To work in.
  std::string launch_agent;  // For the hosts behind the first one; empty: ssh.
  // NAME, VALUE: put into the environment. May hold secrets.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> arguments;     // ddp-run's, the same on all hosts.
  std::int64_t start_limit_ms = 600'000;  // How long a host may take to start ddp-run.
  bool joins_ours = true;  // The rendezvous runs in the first launcher, so none is to be hosted.
  // The first is the receiver's; it starts the others.
  std::vector<NodePlace> places;
};

// Any bytes may stand in the strings.
std::string encode(const NodeOrder& order);
Result<NodeOrder> decode_order(std::string_view payload);

// The frames behind it: a signal that the receiver is to take for its own.
std::string encode_signal(int signal);
Result<int> decode_signal(std::string_view payload);

// What becomes of a host, told upwards as a line of standard output.
struct NodeReport {
  enum class Kind {
    kReached,      // ddp-run runs there.
    kEnded,        // It has ended, with the members below.
    kUnreachable,  // It could not be started; `summary` says why.
    kLost,         // The connection to it ended before it did; `summary` says how.
  };
  Kind kind = Kind::kReached;
  std::string host;
  int exit_code = 0;
  std::string summary;
  std::string report;  // The whole report of the job's failure; empty if there is none.
  std::string error;   // The same for a launcher above, as JSON.
};

// One line without its end, behind the mark.
std::string encode_line(const std::string& mark, const NodeReport& report);
// kProtocol if the line, which begins with the mark, holds none.
Result<NodeReport> decode_line(const std::string& mark, std::string_view line);

}  // namespace ddp::hosts
