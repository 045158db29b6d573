#pragma once

#include <signal.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/hosts/launch_tree.h"

// Messages between a ddp-run that starts others (the launcher) and the ddp-runs that it has
// started, over their standard input and output. README.md describes the protocol. Pure.
namespace ddp::hosts {

// The only argument of a ddp-run that another one has started.
inline constexpr std::string_view kStartedFlag = "--started-by-ddp-run";

// The first frame on its standard input. It holds everything that the started ddp-run needs, so
// that no argument passes through a shell and no secret appears in an argument list.
struct NodeOrder {
  std::string mark;          // Random; begins the lines that are reports, not output.
  std::string program;       // Path of ddp-run, the same on all hosts.
  std::string folder;        // The working directory.
  std::string launch_agent;  // For the hosts after the first one; empty: ssh.
  // NAME, VALUE: variables to set in the environment. May hold secrets.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> arguments;     // ddp-run's, the same on all hosts.
  std::int64_t start_limit_ms = 600'000;  // How long a host may take to start ddp-run.
  int checkpoint_signal = SIGUSR1;        // Asks for a checkpoint and ends nothing; 0: none.
  bool joins_ours = true;  // The rendezvous runs in the first launcher, so none is to be hosted.
  // The first place is the receiver's; the receiver starts the others.
  std::vector<NodePlace> places;
};

// The strings may hold any bytes.
std::string encode(const NodeOrder& order);
Result<NodeOrder> decode_order(std::string_view payload);

// The frames after the order: a signal for the receiver.
std::string encode_signal(int signal);
Result<int> decode_signal(std::string_view payload);

// What happened to a host. It goes to the launcher as a line of standard output.
struct NodeReport {
  enum class Kind {
    kReached,      // ddp-run runs there.
    kEnded,        // It has ended; the members below say how.
    kUnreachable,  // It could not be started; `summary` says why.
    kLost,         // The connection to it ended before it did; `summary` says how.
  };
  Kind kind = Kind::kReached;
  std::string host;
  int exit_code = 0;
  std::string summary;
  std::string report;  // The whole report of the job's failure; empty if there is none.
  std::string error;   // The failure as JSON, for a launcher above.
};

// One line, without a newline, that begins with the mark.
std::string encode_line(const std::string& mark, const NodeReport& report);
// The line must begin with the mark. kProtocol if the rest is not a report.
Result<NodeReport> decode_line(const std::string& mark, std::string_view line);

}  // namespace ddp::hosts
