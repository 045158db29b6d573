// Flags about the workers' output.
#include <algorithm>
#include <array>

#include "common/base/template_text.h"
#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

// "null" means no event log, which is an empty text.
Result<std::string> parse_event_log(const std::string& text) {
  if (text == "null") return std::string();
  if (text == "console" || (text.starts_with("json:") && text.size() > 5)) return text;
  return exit_error(kExitInvalidValue,
                    "the values are null, console and json:FILE, for example json:events.json");
}

Result<std::string> parse_file_name(const std::string& text) {
  if (!text.empty() && !text.ends_with('/')) return text;
  return exit_error(kExitInvalidValue, "not the name of a file");
}

// Where log files go if a flag asks for them and none says where.
constexpr const char* kDefaultLogDir = "ddp-run-logs";
constexpr const char* kNoFiles = "/dev/null";

constexpr const char* kTorchrunsPrefix = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
constexpr auto kPrefixNames = std::to_array<std::string_view>(
    {"role_name", "rank", "local_rank", "hostname", "node_rank", "time"});

Result<std::vector<std::string>> parse_filters(const std::string& text) {
  return config::split_filters(text);
}

// As under torchrun, an unknown name stays as it is. It may be a typing error, so there is a
// warning.
void warn_of_unknown_names(const std::string& shown, Options& options) {
  std::string all;
  for (const std::string_view name : kPrefixNames)
    all += fmt::format("{}${{{}}}", all.empty() ? "" : ", ", name);
  for (const TemplatePart& part : template_parts(options.spec.output.prefix)) {
    if (part.name.empty() || std::ranges::count(kPrefixNames, part.name) > 0) continue;
    options.warnings.push_back(fmt::format(
        "{}: {} is not known and stays as it is; the known names are {}", shown, part.text, all));
  }
}

// An empty template counts as none, also in torchrun's variable.
void read_prefix(FlagReader& reader, Options& options) {
  config::OutputSpec& output = options.spec.output;
  const GivenFlag* given = reader.find("log-line-prefix-template");
  const GivenFlag* none = reader.find("no-log-prefix");
  if (none != nullptr) {
    if (given != nullptr)
      return reader.wrong(none->shown, "contradicts {}; leave one of them out", given->shown);
    output.has_prefix = true;
    return;
  }
  std::string shown;
  if (given != nullptr) {
    output.prefix = given->value;
    shown = given->shown;
  } else if (const char* torchruns = reader.environment(kTorchrunsPrefix); torchruns != nullptr) {
    output.prefix = torchruns;
    shown = fmt::format("{}={}", kTorchrunsPrefix, torchruns);
  }
  output.has_prefix = !output.prefix.empty();
  warn_of_unknown_names(shown, options);
}

void read_log_dir(FlagReader& reader, Options& options) {
  const config::OutputSpec& output = options.spec.output;
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
  config::OutputSpec& output = options.spec.output;
  reader.take("redirects", config::parse_stream_map, output.redirects);
  reader.take("tee", config::parse_stream_map, output.tee);
  reader.take("local-ranks-filter", config::parse_rank_set, output.local_ranks);
  reader.take("ranks-filter", config::parse_rank_set, output.ranks);
  reader.take("duplicate-stdout-filters", parse_filters, output.stdout_filters);
  reader.take("duplicate-stderr-filters", parse_filters, output.stderr_filters);
  read_prefix(reader, options);
  output.status_line = !reader.has("no-status-line");
  read_log_dir(reader, options);
  reader.take("event-log-handler", parse_event_log, options.event_log);
  reader.take("page-file", parse_file_name, options.page_file);
  reader.take("trace", parse_file_name, options.trace_file);
  if (const GivenFlag* given = reader.find("logs-specs");
      given != nullptr && given->value != "default") {
    reader.wrong(given->shown,
                 "torchrun's plug-ins are Python and cannot run here; the only value is default");
  }
}

}  // namespace ddp::flags
