#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/store/socket.h"

// How commands ask the rendezvous daemon of a running job for its pages. Errors are exit_error, for
// people.
namespace ddp::status {

struct Daemon {
  HostPort endpoint;
  Secret token{};          // The job's; empty: none.
  Duration limit{10'000};  // For an answer, and again for its body.
};

// What answers at `endpoint` is none.
Error another_program(const HostPort& endpoint, std::string_view why);

// HOST or HOST:PORT of a rendezvous daemon (default port 29400).
Result<HostPort> parse_daemon(const std::string& text);

// The text as the value of a query in an address.
std::string query_value(std::string_view text);

// An answer whose body has not been read.
struct Answer {
  store::Socket socket;
  std::string head;
  int status = 0;  // HTTP's: 200 if the page follows.
  Duration limit;  // For the body.
};

// Asks for a page. Proves that it knows the token if the daemon wants that, and follows a daemon
// that stands by to the coordinator. Blocks for at most the limit at each daemon. Fails if nothing
// answers, if something else does, or if the token is missing or wrong.
Result<Answer> ask(const Daemon& daemon, const std::string& target);

// The body, within the limit: the page, or why there is none.
Result<std::string> body_of(Answer& answer);

// A page that every daemon has.
Result<std::string> ask_page(const Daemon& daemon, const std::string& target);

}  // namespace ddp::status
