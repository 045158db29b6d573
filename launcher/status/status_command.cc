#include "launcher/status/status_command.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/terminal/terminal.h"
#include "launcher/status/ask_daemon.h"

namespace ddp::status {
namespace {

constexpr std::chrono::seconds kWatchInterval{1};
constexpr const char* kUsage = "ddp-run status HOST[:PORT] [--json | --watch]";
constexpr const char* kHelp =
    "ddp-run status HOST[:PORT] [--json | --watch]\n\nAsks the rendezvous daemon of a running job "
    "(default port 29400) for the state of its jobs: round, nodes,\nranks, steps, restarts, the "
    "first failure and what the job waits for. --json prints what GET /status gives; GET\n/metrics "
    "on the same port is for Prometheus. --watch asks each second until the daemon is gone. A "
    "program called\nstatus is started by ddp-run ./status.\nExample: ddp-run status "
    "node0:29400\n\nExit status: 0 done, 2 the line cannot be read, 64 no endpoint, 66 another "
    "program has the port, 67 nothing answers.\n";

int refuse(const Error& error) {
  std::fprintf(stderr, "ddp-run status: %s\n", error.message.c_str());
  return exit_code_of(error);
}

struct Request {
  bool help = false;
  bool json = false;
  bool watch = false;
  Daemon daemon;  // Without a token: anybody may read the state of a job.
};

Result<Request> parse(const std::vector<std::string>& arguments) {
  Request line;
  std::string endpoint;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--help" || word == "-h") {
      line.help = true;
      return line;
    }
    if (word == "--json") {
      line.json = true;
    } else if (word == "--watch") {
      line.watch = true;
    } else if (word.starts_with('-')) {
      return exit_error(kExitUsage, "{}: there is no such flag; write {}", word, kUsage);
    } else if (!endpoint.empty()) {
      return exit_error(kExitUsage, "{}: there can be only one endpoint; write {}", word, kUsage);
    } else {
      endpoint = word;
    }
  }
  if (line.json && line.watch)
    return exit_error(kExitUsage, "--json and --watch exclude each other; write {}", kUsage);
  if (endpoint.empty()) {
    return exit_error(kExitUsage, "the rendezvous is missing; write {}", kUsage);
  }
  auto parsed = parse_daemon(endpoint);
  if (!parsed) return parsed.error();
  line.daemon.endpoint = std::move(*parsed);
  return line;
}

// The page as tables.
Result<std::string> tables_of(std::string_view page) {
  auto text = status_text(page);
  if (text) return text;
  return exit_error(kExitPortInUse,
                    "what answers there is not a rendezvous: {}; name the port of --rdzv-endpoint",
                    text.error().message);
}

// On a terminal, each text takes the place of the one before, and what does not fit is left out.
void show(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 0) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
    return;
  }
  std::string frame = "\x1b[H";
  int rows = terminal::rows(STDOUT_FILENO);
  while (!text.empty() && --rows > 0) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    frame += terminal::cut_to_width(STDOUT_FILENO, text.substr(0, end));
    frame += "\x1b[K\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  fmt::print("{}\x1b[J", frame);
  std::fflush(stdout);
}

// Returns when the daemon is gone.
int watch(const Daemon& daemon) {
  for (bool first = true;; first = false) {
    const auto page = ask_page(daemon, "/status");
    if (!page && !first) {
      fmt::print("The rendezvous is gone: the job is over, or another node has taken over.\n");
      return kExitSuccess;
    }
    if (!page) return refuse(page.error());
    const auto text = tables_of(*page);
    if (!text) return refuse(text.error());
    if (first && ::isatty(STDOUT_FILENO) != 0) fmt::print("\x1b[2J");
    show(*text);
    std::this_thread::sleep_for(kWatchInterval);
  }
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
  if (line->watch) return watch(line->daemon);
  const auto page = ask_page(line->daemon, "/status");
  if (!page) return refuse(page.error());
  const auto text = tables_of(*page);
  if (!text) return refuse(text.error());
  std::fputs(line->json ? page->c_str() : text->c_str(), stdout);
  return std::fflush(stdout) == 0 ? kExitSuccess : kExitInternal;
}

}  // namespace ddp::status
