#include "launcher/ddp_run/status_command.h"

#include <chrono>
#include <cstdio>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "launcher/flags/flag_values.h"
#include "launcher/hosting/daemon_page.h"

namespace ddp::run {
namespace {

constexpr int kDefaultPort = 29'400;
constexpr std::chrono::milliseconds kLimit{10'000};
constexpr const char* kUsage = "ddp-run status HOST[:PORT] [--json]";
constexpr const char* kHelp =
    "ddp-run status HOST[:PORT] [--json]\n\nAsks the rendezvous daemon of a running job (default "
    "port 29400) for the state of its jobs: round, nodes,\nranks, steps, restarts, the first "
    "failure and what the job waits for. --json prints what GET /status gives; GET\n/metrics on "
    "the same port is for Prometheus. A program called status is started by ddp-run "
    "./status.\nExample: ddp-run status node0:29400\n\nExit status: 0 done, 2 the line cannot be "
    "read, 64 no endpoint, 66 another program has the port, 67 nothing answers.\n";

int refuse(const Error& error) {
  std::fprintf(stderr, "ddp-run status: %s\n", error.message.c_str());
  return exit_code_of(error);
}

struct Line {
  bool help = false;
  bool json = false;
  HostPort endpoint;
};

Result<Line> parse(const std::vector<std::string>& arguments) {
  Line line;
  std::string endpoint;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--help" || word == "-h") {
      line.help = true;
      return line;
    }
    if (word == "--json") {
      line.json = true;
    } else if (word.starts_with('-')) {
      return exit_error(kExitUsage, "{}: there is no such flag; write {}", word, kUsage);
    } else if (!endpoint.empty()) {
      return exit_error(kExitUsage, "{}: there can be only one endpoint; write {}", word, kUsage);
    } else {
      endpoint = word;
    }
  }
  if (endpoint.empty()) {
    return exit_error(kExitUsage, "the rendezvous is missing; write {}", kUsage);
  }
  auto parsed = flags::parse_endpoint(endpoint, kDefaultPort);
  if (!parsed) {
    return exit_error(kExitInvalidValue, "{}: {}", endpoint, parsed.error().message);
  }
  line.endpoint = std::move(*parsed);
  return line;
}

// The body of the daemon's page.
Result<std::string> ask_status(const HostPort& endpoint) {
  const TimePoint deadline = Clock::now() + kLimit;
  const std::string name = host_and_port(endpoint.host, endpoint.port);
  constexpr const char* kIsItYours =
      "is a job running there, is that the port of its --rdzv-endpoint, and is it yours? Another "
      "user's job on this machine answers only with --any-user";
  auto socket = store::Socket::connect(endpoint.host, endpoint.port, deadline);
  if (!socket) {
    return exit_error(kExitJoinTimeout, "nothing answers at {}: {}; {}", name,
                      socket.error().message, kIsItYours);
  }
  auto page = hosting::get_page(*socket, "/status", name, deadline);
  if (page && *page) return std::move(**page);
  if (!page && page.error().code == Errc::kPeerLost) {
    return exit_error(kExitJoinTimeout, "nothing answers at {}: {}; {}", name, page.error().message,
                      kIsItYours);
  }
  return exit_error(kExitPortInUse,
                    "what answers at {} is not a rendezvous: {}; name the port of --rdzv-endpoint",
                    name, page ? "it has no page /status" : page.error().message);
}

}  // namespace

std::optional<int> run_status_command(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "status") return std::nullopt;
  const auto line = parse(arguments);
  if (!line) return refuse(line.error());
  if (line->help) {
    std::fputs(kHelp, stdout);
    return kExitSuccess;
  }
  const auto page = ask_status(line->endpoint);
  if (!page) return refuse(page.error());
  const auto text = status_text(*page);
  if (!text) {
    return refuse(exit_error(kExitPortInUse,
                             "what answers there is not a rendezvous: {}; name the port of "
                             "--rdzv-endpoint",
                             text.error().message));
  }
  std::fputs(line->json ? page->c_str() : text->c_str(), stdout);
  return std::fflush(stdout) == 0 ? kExitSuccess : kExitInternal;
}

}  // namespace ddp::run
