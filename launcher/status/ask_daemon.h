#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/store/socket.h"

namespace ddp::status {

// HOST or HOST:PORT of a rendezvous daemon (default port 29400); exit_error.
Result<HostPort> parse_daemon(const std::string& text);

// A connection to the daemon; exit_error if nothing answers.
Result<store::Socket> connect_daemon(const HostPort& endpoint, TimePoint deadline);

// The text as the value of a query in an address.
std::string query_value(std::string_view text);

// The body of the daemon's page at this path. Blocks for at most 10 s. Errors are exit_error, for
// people: nothing answers there, or something else does.
Result<std::string> ask_daemon(const HostPort& endpoint, std::string_view path);

}  // namespace ddp::status
