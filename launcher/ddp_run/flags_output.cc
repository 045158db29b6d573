// What becomes of the workers' output.
#include <array>

#include "launcher/ddp_run/flag_reader.h"
#include "launcher/ddp_run/flag_values.h"

namespace ddp::run {
namespace {

// "null" is none, and so empty.
Result<std::string> parse_event_log(const std::string& text) {
  if (text == "null") return std::string();
  if (text == "console" || (text.starts_with("json:") && text.size() > 5)) return text;
  return exit_error(kExitInvalidValue,
                    "there are null, console and json:FILE, for example json:events.json");
}

// Where files go that were asked for without a place for them.
constexpr const char* kDefaultLogDir = "ddp-run-logs";
constexpr const char* kNoFiles = "/dev/null";

constexpr auto kPrefixNames = std::to_array<std::string_view>(
    {"role_name", "rank", "local_rank", "host", "node_rank", "time"});

Result<std::vector<std::string>> parse_filters(const std::string& text) {
  return config::split_filters(text);
}

// A name that nobody knows would stay as it is.
Result<std::string> parse_prefix(const std::string& text) {
  std::string all;
  for (const std::string_view name : kPrefixNames)
    all += fmt::format("{}${{{}}}", all.empty() ? "" : ", ", name);
  for (std::size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at + 2)) {
    const std::size_t end = text.find('}', at);
    const std::string name = text.substr(at, end == std::string::npos ? end : end + 1 - at);
    bool known = false;
    for (const std::string_view one : kPrefixNames) known |= name == fmt::format("${{{}}}", one);
    if (!known)
      return make_error(Errc::kInvalidArgument, "{} is not known; there are {}", name, all);
  }
  return text;
}

void read_prefix(FlagReader& reader, config::OutputSpec& output) {
  const char* torchruns = reader.environment("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  output.has_prefix = torchruns != nullptr || reader.has("log-prefix");
  if (torchruns != nullptr) output.prefix = torchruns;
  reader.take("log-prefix", parse_prefix, output.prefix);
}

void read_log_dir(FlagReader& reader, Options& options) {
  const config::OutputSpec& output = options.output;
  if (const GivenFlag* given = reader.find("log-dir"); given != nullptr) {
    if (given->value != kNoFiles) options.log_dir = given->value;
    return;
  }
  options.log_dir_is_default = !output.redirects.none() || !output.tee.none() ||
                               !output.stdout_filters.empty() || !output.stderr_filters.empty();
  if (options.log_dir_is_default) options.log_dir = kDefaultLogDir;
}

}  // namespace

void read_output_flags(FlagReader& reader, Options& options) {
  config::OutputSpec& output = options.output;
  reader.take("redirects", config::parse_stream_map, output.redirects);
  reader.take("tee", config::parse_stream_map, output.tee);
  reader.take("local-ranks-filter", config::parse_rank_set, output.local_ranks);
  reader.take("ranks-filter", config::parse_rank_set, output.ranks);
  reader.take("duplicate-stdout-filters", parse_filters, output.stdout_filters);
  reader.take("duplicate-stderr-filters", parse_filters, output.stderr_filters);
  read_prefix(reader, output);
  output.fold = reader.has("fold");
  output.status_line = !reader.has("no-status-line");
  reader.take(
      "console-timeout", [](const std::string& text) { return parse_seconds(text, true); },
      output.console_timeout_ms);
  read_log_dir(reader, options);
  reader.take("event-log-handler", parse_event_log, options.event_log);
  if (const GivenFlag* given = reader.find("logs-specs");
      given != nullptr && given->value != "default") {
    reader.wrong(given->shown,
                 "torchrun's plug-ins are Python and cannot run here; there is only default");
  }
}

}  // namespace ddp::run
