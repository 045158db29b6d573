#include "agent/shell/agent_options.h"

#include <charconv>
#include <limits>

namespace ddp::agent {
namespace {

template <typename T>
Result<T> number(const std::string& flag, const std::string& text, T minimum) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < minimum) {
    return make_error(Errc::kInvalidArgument, "{} {}: expected a number from {}", flag, text,
                      minimum);
  }
  return value;
}

template <typename T>
Result<void> assign(const std::string& flag, const std::string& text, T minimum, T& out) {
  const Result<T> value = number(flag, text, minimum);
  if (!value) return value.error();
  out = *value;
  return {};
}

}  // namespace

Result<AgentOptions> parse_agent_options(const std::vector<std::string>& arguments) {
  AgentOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--help" || flag == "-h") options.help = true;
    if (flag == "--version") options.version = true;
    if (options.help || options.version) return options;
    const bool known = flag == "--job-fd" || flag == "--result-fd" || flag == "--last-round" ||
                       flag == "--restarts" || flag == "--coordinator-fd" || flag == "--tasks-fd" ||
                       flag == "--task-socket" || flag == "--task-rank" ||
                       flag == "--task-limit-ms";
    if (!known) return make_error(Errc::kInvalidArgument, "{}: unknown argument", flag);
    if (i + 1 == arguments.size())
      return make_error(Errc::kInvalidArgument, "{}: its value is missing", flag);
    const std::string& text = arguments[++i];
    Result<void> assigned;
    if (flag == "--job-fd") assigned = assign(flag, text, 0, options.job_fd);
    if (flag == "--result-fd") assigned = assign(flag, text, 0, options.result_fd);
    if (flag == "--last-round") assigned = assign<Round>(flag, text, kNoRound, options.last_round);
    if (flag == "--restarts") assigned = assign(flag, text, 0, options.restarts);
    if (flag == "--coordinator-fd") assigned = assign(flag, text, 0, options.coordinator_fd);
    if (flag == "--tasks-fd") assigned = assign(flag, text, 0, options.tasks_fd);
    if (flag == "--task-socket") options.task_socket = text;
    if (flag == "--task-rank") assigned = assign(flag, text, 1, options.task_rank);
    if (flag == "--task-limit-ms") assigned = assign(flag, text, 1, options.task_limit_ms);
    if (!assigned) return assigned.error();
  }
  if (!options.task_socket.empty() && options.task_rank > 0) return options;
  if (options.job_fd < 0) return make_error(Errc::kInvalidArgument, "--job-fd is missing");
  if (options.result_fd < 0) return make_error(Errc::kInvalidArgument, "--result-fd is missing");
  return options;
}

}  // namespace ddp::agent
