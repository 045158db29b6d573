// Flags about failures and time limits.
#include <algorithm>
#include <cstdint>

#include "common/base/signal_name.h"
#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

constexpr int kMaxStandbys = 1'024;

Result<std::int64_t> seconds(const std::string& text) { return parse_seconds(text, false); }
Result<std::int64_t> seconds_or_none(const std::string& text) { return parse_seconds(text, true); }

// Reads one of PyTorch's variables.
void read_limit(FlagReader& reader, const char* variable, std::int64_t& option) {
  const char* text = reader.environment(variable);
  if (text == nullptr) return;
  const auto limit = seconds_or_none(text);
  if (!limit)
    return reader.wrong(fmt::format("{}={}", variable, text), "{}", limit.error().message);
  option = *limit;
}

// As in torchrun, 0 and negative values mean no limit.
void read_uninterruptible_limit(FlagReader& reader, Options& options) {
  constexpr const char* kVariable = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
  const char* text = reader.environment(kVariable);
  if (text == nullptr || *text == '\0') return;
  const bool negative = *text == '-';
  const auto limit = seconds_or_none(negative ? text + 1 : text);
  if (!limit)
    return reader.wrong(fmt::format("{}={}", kVariable, text), "{}", limit.error().message);
  options.spec.uninterruptible_ms = negative ? 0 : *limit;
}

// As in torchrun, unknown signal names are ignored with a warning, but stay in the list that
// workers see.
void read_ending_signals(FlagReader& reader, Options& options) {
  const GivenFlag* given = reader.find("signals-to-handle");
  if (given == nullptr) return;
  const auto signals = parse_signals(given->value);
  if (!signals) return reader.wrong(given->shown, "{}", signals.error().message);
  options.spec.signals = signals->numbers;
  options.spec.signals_to_handle = given->value;
  for (const std::string& name : signals->unknown) {
    options.warnings.push_back(
        fmt::format("{}: there is no signal '{}', so it is not handled", given->shown, name));
  }
}

std::string names_of(const std::vector<int>& signals) {
  std::string names;
  for (const int signal : signals) names += (names.empty() ? "" : ",") + signal_name(signal);
  return names;
}

// A signal either ends the workers or asks for a checkpoint. As in torchrun, a signal in
// --signals-to-handle ends the workers. Without that flag, the checkpoint signal wins.
void read_signals(FlagReader& reader, Options& options) {
  const bool ending = reader.has("signals-to-handle");
  const bool checkpoint = reader.has("checkpoint-signal");
  read_ending_signals(reader, options);
  reader.take(
      "checkpoint-signal",
      [](const std::string& text) { return text == "none" ? Result<int>(0) : parse_signal(text); },
      options.spec.checkpoint_signal);
  const auto both = std::find(options.spec.signals.begin(), options.spec.signals.end(),
                              options.spec.checkpoint_signal);
  if (both == options.spec.signals.end()) return;
  if (ending && checkpoint) {
    reader.wrong(reader.find("checkpoint-signal")->shown,
                 "contradicts {}: a signal either asks for a checkpoint or ends the workers; leave "
                 "{} out of one of them",
                 reader.find("signals-to-handle")->shown, signal_name(*both));
  } else if (ending) {
    options.spec.checkpoint_signal = 0;
  } else {
    options.spec.signals.erase(both);
    options.spec.signals_to_handle = names_of(options.spec.signals);
  }
}

}  // namespace

void read_limit_flags(FlagReader& reader, Options& options) {
  const auto restarts = [](const std::string& text) {
    return parse_integer(text, 0, config::kMaxRestartsLimit);
  };
  const auto standbys = [](const std::string& text) {
    return parse_integer(text, 0, kMaxStandbys);
  };
  reader.take("max-restarts", restarts, options.spec.rules.max_restarts);
  options.spec.rules.restart_on_start_failure = reader.has("restart-on-start-failure");
  reader.take("max-no-progress", restarts, options.spec.rules.max_no_progress);
  reader.take("max-node-failures", restarts, options.spec.rules.max_node_failures);
  options.health_check = reader.has("health-check");
  if (const GivenFlag* folder = reader.find("check-dir")) options.check_dir = folder->value;
  reader.take("standby", standbys, options.spec.standby);
  reader.take("progress-timeout", seconds_or_none, options.spec.progress_timeout_ms);
  reader.take("scale-up-timeout", seconds_or_none, options.spec.rules.scale_up_ms);
  reader.take("last-call", seconds_or_none, options.spec.rules.last_call_ms);
  reader.take("join-timeout", seconds, options.spec.rules.join_timeout_ms);
  reader.take("lease", parse_lease, options.spec.rules.lease_ms);
  reader.take("exclude-stragglers", parse_ratio, options.spec.rules.exclude_stragglers);
  reader.take("coordinator-timeout", seconds_or_none, options.spec.coordinator_timeout_ms);
  read_limit(reader, "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", options.spec.exit_barrier_ms);
  if (reader.has("shutdown-timeout")) {
    reader.take("shutdown-timeout", seconds_or_none, options.spec.rules.stop_timeout_ms);
  } else {
    read_limit(reader, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", options.spec.rules.stop_timeout_ms);
  }
  read_uninterruptible_limit(reader, options);
  read_signals(reader, options);
  reader.value<std::int64_t>("monitor-interval", seconds_or_none);  // It has no effect.
}

}  // namespace ddp::flags
