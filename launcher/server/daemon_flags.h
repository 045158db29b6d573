#pragma once

#include <cstddef>
#include <string>
#include <variant>

#include "launcher/server/server.h"

namespace ddp::server {

// What the command line of ddp-rendezvous asks the daemon to do.
struct DaemonFlags {
  ServerOptions server;
  bool until_eof = false;  // End when standard input does.
};
// Print this text instead of serving (--help, --version).
struct PrintText {
  std::string text;
};
// Why the command line cannot be followed, in one line, and the program's exit status.
struct Refusal {
  int exit_code = 0;
  std::string reason;
};
using DaemonCommand = std::variant<DaemonFlags, PrintText, Refusal>;

// `descriptors`: how many files the process may open. This bounds --max-connections and gives its
// default.
DaemonCommand read_daemon_flags(int argc, char** argv, std::size_t descriptors);

}  // namespace ddp::server
