#include "launcher/rendezvous/report.h"

#include <algorithm>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"
#include "common/base/count_text.h"
#include "common/base/exit_codes.h"
#include "common/base/signal_name.h"
#include "common/wire/error_file.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kWidth = 60;
constexpr std::size_t kNamesMax = 16;
constexpr std::size_t kOtherFailuresMax = 32;
constexpr std::size_t kTailLinesMax = 20;
constexpr std::size_t kCallstackLinesMax = 30;
constexpr std::size_t kDetailBytesMax = 200;  // For failures that get one line.
constexpr std::size_t kLineBytesMax = 400;
constexpr std::size_t kSentencesMax = 16;  // Per node.

// Shortened and on one line, because the text comes from a worker.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kLineBytesMax));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\t') c = ' ';
  }
  if (text.size() > kLineBytesMax) line += " ...";
  return line;
}

// The exit code as torchrun prints it: negative for signals.
int python_exit_code(const wire::Failure& failure) {
  return failure.signal != 0 ? -failure.signal : failure.exit_code;
}

std::string wall_time(std::int64_t time_ms) {
  const std::time_t seconds = static_cast<std::time_t>(time_ms / 1'000);
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "unknown";
  return fmt::format("{:%Y-%m-%d_%H:%M:%S}.{:03} UTC", parts, time_ms % 1'000);
}

std::string ending(const wire::Failure& failure) {
  if (failure.signal != 0) {
    return fmt::format("signal {} ({})", failure.signal, signal_name(failure.signal));
  }
  return fmt::format("exit code {}", failure.exit_code);
}

void add_field(std::string& text, std::string_view name, std::string_view value) {
  text += fmt::format("  {:<10}: {}\n", name, value);
}

// The last `max` of the lines.
void add_lines(std::string& text, std::string_view name, std::string_view value,
               const std::vector<std::string>& lines, std::size_t max) {
  add_field(text, name, value);
  const std::size_t skip = lines.size() - std::min(lines.size(), max);
  for (std::size_t i = skip; i < lines.size(); ++i)
    text += fmt::format("    | {}\n", one_line(lines[i]));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// What is known about the failure beyond how it ended. Empty for secondary failures.
std::string detail(const wire::Failure& failure) {
  if (failure.secondary) return "";
  const std::string& text = failure.cause.empty() ? failure.message : failure.cause;
  if (text.empty()) return "";
  const std::string line = one_line(std::string_view(text).substr(0, text.find('\n')));
  return ": " + (line.size() > kDetailBytesMax ? line.substr(0, kDetailBytesMax) + " ..." : line);
}

std::string full_entry(const wire::Failure& failure) {
  std::string text;
  if (failure.time_ms > 0) add_field(text, "time", wall_time(failure.time_ms));
  add_field(text, "host", one_line(failure.host));
  add_field(text, "node", fmt::format("{} ({})", failure.group_rank, one_line(failure.node_id)));
  if (is_node_loss(failure)) {
    add_field(text, "lost", one_line(failure.message));
    return text;
  }
  add_field(text, "rank", fmt::format("{} (local_rank: {})", failure.rank, failure.local_rank));
  add_field(text, "exitcode", fmt::format("{} (pid: {})", python_exit_code(failure), failure.pid));
  if (!failure.log_path.empty()) add_field(text, "error_file", one_line(failure.log_path));
  if (!failure.cause.empty()) add_field(text, "cause", one_line(failure.cause));
  if (failure.was_ending) {
    add_field(text, "cause",
              "the exception below; it was still exiting when the round was stopped");
  }
  if (failure.signal != 0) {
    add_field(text, "traceback",
              fmt::format("Signal {} ({}) received by PID {}", failure.signal,
                          signal_name(failure.signal), failure.pid));
  }
  if (!failure.message.empty()) add_field(text, "message", one_line(failure.message));
  if (!failure.callstack.empty())
    add_lines(text, "callstack", "of the exception", lines_of(failure.callstack),
              kCallstackLinesMax);
  if (!failure.stderr_tail.empty())
    add_lines(text, "stderr", "last lines of its standard error", failure.stderr_tail,
              kTailLinesMax);
  return text;
}

std::string other_failures(const std::vector<wire::Failure>& failures, std::size_t root) {
  std::string text = "Failures:\n";
  if (failures.size() == 1) return text + "  <NO_OTHER_FAILURES>\n";
  std::size_t number = 0;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (i == root) continue;
    if (++number > kOtherFailuresMax) {
      text += fmt::format("  ... and {} more\n", failures.size() - 1 - kOtherFailuresMax);
      break;
    }
    text += fmt::format("  [{}]: {}{}\n", number, describe(failures[i]),
                        failures[i].secondary ? " (a consequence of another failure)" : "");
  }
  return text;
}

// Empty if no worker kept a record.
std::string waiting_operations(const ReportInput& input, const std::string& rule) {
  std::string text;
  for (const auto& [host, sentences] : input.operations) {
    if (sentences.empty()) continue;
    text += fmt::format("  {}:\n", one_line(host));
    for (std::size_t i = 0; i < std::min(sentences.size(), kSentencesMax); ++i)
      text += fmt::format("    {}\n", one_line(sentences[i]));
  }
  return text.empty() ? text : fmt::format("{}\nOperations when it failed:\n{}", rule, text);
}

}  // namespace

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesMax);
  const std::string text = fmt::format("{}", fmt::join(names.data(), names.data() + shown, ", "));
  if (names.size() == shown) return text;
  return fmt::format("{} and {} more", text, names.size() - shown);
}

std::size_t root_cause(const std::vector<wire::Failure>& failures) {
  DDP_CHECK(!failures.empty(), "no failure, no cause");
  const auto primary = std::find_if(failures.begin(), failures.end(),
                                    [](const wire::Failure& f) { return !f.secondary; });
  return primary == failures.end() ? 0 : static_cast<std::size_t>(primary - failures.begin());
}

std::string describe(const wire::Failure& failure) {
  const std::string host = one_line(failure.host.empty() ? failure.node_id : failure.host);
  if (is_node_loss(failure))
    return fmt::format("node {} was lost: {}", host, one_line(failure.message));
  if (failure.kind == "start") {
    return fmt::format("rank {} on {} could not be started: {}", failure.rank, host,
                       one_line(failure.message));
  }
  if (failure.kind == "collective") {
    return fmt::format("rank {} on {} left the round: {}", failure.rank, host,
                       one_line(failure.message));
  }
  return fmt::format("rank {} on {} failed: {}{}", failure.rank, host, ending(failure),
                     detail(failure));
}

std::string describe_in_full(const wire::Failure& failure) { return full_entry(failure); }

bool is_node_loss(const wire::Failure& failure) {
  return failure.kind == "agent" || failure.kind == "lease";
}

bool is_permanent(const wire::Failure& failure) {
  if (failure.kind == "stuck") return true;
  if (failure.signal != 0 || is_node_loss(failure)) return false;
  if (failure.kind == "start") {
    return failure.exit_code == kExitNotExecutable || failure.exit_code == kExitNotFound;
  }
  return failure.exit_code == kExitInvalidValue || failure.exit_code == kExitDataInvalid ||
         failure.exit_code == kExitCheckpointUnwritable || failure.exit_code == kExitUnfit;
}

int exit_status(const wire::Failure& failure) {
  if (is_node_loss(failure)) return kExitNodeLost;
  const int status = failure.status();
  return status > 0 && status <= 255 ? status : static_cast<int>(kExitInternal);
}

std::string failure_report(const ReportInput& input) {
  const std::size_t root = root_cause(input.failures);
  const std::string thick(kWidth, '=');
  const std::string thin(kWidth, '-');
  std::string text =
      fmt::format("{}\n{} FAILED\n{}\n", thick,
                  one_line(input.program.empty() ? input.job_id : input.program), thin);
  text += other_failures(input.failures, root);
  text += fmt::format("{}\nRoot Cause (first observed failure):\n", thin);
  text += "[0]:\n" + full_entry(input.failures[root]);
  text += waiting_operations(input, thin);
  const bool is_stuck = input.failures[root].kind == "stuck";
  const bool a_restart_may_help = !is_stuck && !input.retry_would_not_help;
  text += fmt::format(
      "{}\nround {} of {} on {}; {} of {} restarts used{}\n", thin, input.round,
      count_text(input.world_size, "worker"), count_text(input.nodes, "node"), input.restarts,
      input.max_restarts,
      input.max_restarts == 0 && a_restart_may_help ? " (--max-restarts N restarts the job)" : "");
  if (!input.late.empty()) text += one_line(input.late) + "\n";
  for (const LeftOut& left_out : input.left_out) {
    text += fmt::format("node {} was left out: {}\n", one_line(left_out.host),
                        one_line(left_out.reason));
  }
  if (is_stuck) {
    text +=
        "not restarted: a new process on the host would need what the process in state D holds\n";
  } else if (input.retry_would_not_help) {
    text += fmt::format("not restarted: status {} means that starting again fails again\n",
                        exit_status(input.failures[root]));
  }
  return text + thick + "\n";
}

std::string error_file(const wire::Failure& failure) {
  return wire::encode_error_file(
      {.message = failure.message.empty() ? describe(failure) : failure.message,
       .callstack = failure.callstack,
       .time_ms = failure.time_ms,
       .exit_code = exit_status(failure)});
}

}  // namespace ddp::rendezvous
