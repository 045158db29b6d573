#include "launcher/trace/trace_command.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/parse_number.h"
#include "common/config/rdzv_token.h"
#include "common/terminal/terminal.h"
#include "launcher/server/step_count.h"
#include "launcher/status/ask_daemon.h"
#include "launcher/trace/trace_client.h"
#include "launcher/trace/trace_summary.h"

namespace ddp::trace {
namespace {

constexpr std::size_t kDefaultSteps = 20;
constexpr Duration kPatience{10'000};
constexpr const char* kUsage =
    "ddp-run trace HOST[:PORT] [--steps N] [--output FILE] [--summary] [--job ID] "
    "[--rdzv-token-file FILE]";
constexpr const char* kHelp =
    "ddp-run trace HOST[:PORT] [--steps N] [--output FILE] [--summary] [--job ID]\n"
    "ddp-run trace FILE --summary\n\n"
    "Writes what each rank of a running job does when, for N steps (default 20) or a few more, to "
    "FILE (default "
    "trace.json). Open it at\nui.perfetto.dev. HOST:PORT is the rendezvous' endpoint (default port "
    "29400). The job is not stopped or restarted.\n\n"
    "  --summary               print where the time went, and who holds up the others; with "
    "--output, write the file, too\n"
    "  --job ID                the job, if the rendezvous has several\n"
    "  --rdzv-token-file FILE  the job's token; or DDP_RDZV_TOKEN\n\n"
    "With a FILE in place of HOST, --summary reads a trace that was written before. A program that "
    "is called trace is started\nby ddp-run ./trace.\n\n"
    "Exit status: 0 done, 2 the line cannot be read, 64 a value is wrong, 66 another program has "
    "the port, 67 nothing\nanswers, 71 it was cut off, 74 the token is wrong.\n";

struct Line {
  bool help = false;
  bool summary = false;
  std::size_t steps = kDefaultSteps;
  std::string output;
  std::string where;
  TraceRequest request;
};

Result<Line> parse(const std::vector<std::string>& arguments) {
  Line line;
  std::string token_file;
  std::string steps;
  const std::map<std::string, std::string*> values{{"--steps", &steps},
                                                   {"--output", &line.output},
                                                   {"--job", &line.request.job_id},
                                                   {"--rdzv-token-file", &token_file}};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const auto flag = values.find(word.substr(0, equals));
    if (flag != values.end()) {
      if (equals == std::string::npos && i + 1 == arguments.size())
        return exit_error(kExitUsage, "{} needs a value; write {}", word, kUsage);
      *flag->second = equals == std::string::npos ? arguments[++i] : word.substr(equals + 1);
    } else if (word == "--help" || word == "-h") {
      line.help = true;
      return line;
    } else if (word == "--summary") {
      line.summary = true;
    } else if (word.starts_with('-')) {
      return exit_error(kExitUsage, "{}: there is no such flag; write {}", word, kUsage);
    } else if (!line.where.empty()) {
      return exit_error(kExitUsage, "{}: there can be only one endpoint; write {}", word, kUsage);
    } else {
      line.where = word;
    }
  }
  if (line.where.empty())
    return exit_error(kExitUsage, "the rendezvous is missing; write {}", kUsage);
  if (!steps.empty()) {
    const auto number = parse_whole_number<std::size_t>(steps, std::size_t{1});
    if (!number)
      return exit_error(kExitInvalidValue, "--steps {}: write a number of steps, from 1 on", steps);
    line.steps = *number;
  }
  auto token = config::find_token(token_file.empty() ? std::nullopt : std::optional(token_file));
  if (!token) return exit_error(kExitInvalidValue, "{}", token.error().message);
  line.request.daemon.token = std::move(*token);
  return line;
}

Result<void> summarize_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return exit_error(kExitInvalidValue, "{} cannot be read", path);
  TraceEventsReader events;
  std::string part(1u << 20, '\0');
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0)
    events.take(std::string_view(part).substr(0, static_cast<std::size_t>(file.gcount())));
  events.take("\n");
  std::fputs(summary_text(summarize(events.ranks())).c_str(), stdout);
  return {};
}

std::atomic<bool> interrupted{false};

// What has come, until there are enough steps. The file is made, or replaced, when something comes.
class Collector {
 public:
  Collector(const Line& line, std::string path)
      : line_(line), path_(std::move(path)), count_(line.steps) {}

  bool take(std::string_view events) {
    if (!events.empty() && !write(events)) return false;
    if (line_.summary) events_.take(events);
    count_.take(events);
    show();
    return !count_.is_reached() && !interrupted;
  }
  void erase_line() const {
    if (shows_) fmt::print(stderr, "{}", terminal::kEraseLine);
  }
  Result<void> close() {
    if (file_ && std::fclose(file_.release()) != 0 && error_ == 0) error_ = errno;
    if (error_ == 0) return {};
    return exit_error(kExitInvalidValue, "--output {}: {}", path_,
                      std::generic_category().message(error_));
  }
  const TraceEventsReader& events() const { return events_; }
  const server::StepCount& count() const { return count_; }

 private:
  bool write(std::string_view events) {
    if (path_.empty()) return true;
    if (!file_) file_.reset(std::fopen(path_.c_str(), "w"));
    if (!file_ || std::fwrite(events.data(), 1, events.size(), file_.get()) != events.size())
      error_ = errno;
    return error_ == 0;
  }
  void show() {
    if (count_.fewest() == 0 && Clock::now() - began_ > kPatience && !std::exchange(told_, true)) {
      erase_line();
      fmt::print(stderr,
                 "ddp-run trace: no rank has ended a step in 10 s. Programs tell their steps by "
                 "ddp_run.progress(). Ctrl-C ends the trace; what has come is kept.\n");
    }
    if (!shows_) return;
    fmt::print(stderr, "{}{} of {} steps", terminal::kEraseLine, count_.fewest(), line_.steps);
    std::fflush(stderr);
  }

  const Line& line_;
  const std::string path_;  // Empty: no file.
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  int error_ = 0;
  server::StepCount count_;
  TraceEventsReader events_;
  const TimePoint began_ = Clock::now();
  const bool shows_ = terminal::can_show_status(STDERR_FILENO);
  bool told_ = false;
};

Result<void> collect(const Line& line) {
  const std::string path =
      line.output.empty() && !line.summary ? std::string("trace.json") : line.output;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  Collector collector(line, path);
  const auto followed =
      follow_trace(line.request, [&](std::string_view events) { return collector.take(events); });
  collector.erase_line();
  if (const auto closed = collector.close(); !closed) return closed;
  const bool was_cut_off = !followed && exit_code_of(followed.error()) == kExitCoordinatorLost;
  if (!followed && !was_cut_off) return followed;
  if (line.summary) std::fputs(summary_text(summarize(collector.events().ranks())).c_str(), stdout);
  if (!path.empty()) {
    fmt::print("{} steps of {} ranks are in {}; open it at ui.perfetto.dev\n",
               collector.count().fewest(), collector.count().ranks(), path);
  }
  return followed;
}

Result<void> run(Line& line) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(line.where, ignored)) {
    if (line.summary) return summarize_file(line.where);
    return exit_error(kExitUsage, "{} is a file: write ddp-run trace {} --summary", line.where,
                      line.where);
  }
  auto endpoint = status::parse_daemon(line.where);
  if (!endpoint) return endpoint.error();
  line.request.daemon.endpoint = std::move(*endpoint);
  return collect(line);
}

}  // namespace

std::optional<int> run_trace_command(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "trace") return std::nullopt;
  const auto refuse = [](const Error& error) {
    std::fprintf(stderr, "ddp-run trace: %s\n", error.message.c_str());
    return exit_code_of(error);
  };
  auto line = parse(arguments);
  if (!line) return refuse(line.error());
  if (line->help) {
    std::fputs(kHelp, stdout);
    return kExitSuccess;
  }
  const auto done = run(*line);
  return done ? kExitSuccess : refuse(done.error());
}

}  // namespace ddp::trace
