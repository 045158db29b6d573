// What failures and waiting may cost.
#include <algorithm>
#include <cstdint>

#include "common/base/signal_name.h"
#include "launcher/ddp_run/flag_reader.h"
#include "launcher/ddp_run/flag_values.h"

namespace ddp::run {
namespace {

constexpr int kMaxRestarts = 1'000'000;
constexpr int kMaxStandbys = 1'024;

Result<std::int64_t> seconds(const std::string& text) { return parse_seconds(text, false); }
Result<std::int64_t> seconds_or_none(const std::string& text) { return parse_seconds(text, true); }

void read_stop_timeout(FlagReader& reader, Options& options) {
  constexpr const char* kVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  const char* text = reader.environment(kVariable);
  if (reader.has("shutdown-timeout")) {
    reader.take("shutdown-timeout", seconds_or_none, options.stop_timeout_ms);
  } else if (text != nullptr) {
    const auto limit = seconds_or_none(text);
    if (!limit)
      return reader.wrong(fmt::format("{}={}", kVariable, text), "{}", limit.error().message);
    options.stop_timeout_ms = *limit;
  }
}

// As in torchrun, a signal that is named ends the workers; so one that was not meant for
// checkpoints on purpose is not.
void read_signals(FlagReader& reader, Options& options) {
  const bool ending = reader.has("signals-to-handle");
  const bool checkpoint = reader.has("checkpoint-signal");
  reader.take("signals-to-handle", parse_signals, options.signals);
  reader.take(
      "checkpoint-signal",
      [](const std::string& text) { return text == "none" ? Result<int>(0) : parse_signal(text); },
      options.checkpoint_signal);
  const auto both =
      std::find(options.signals.begin(), options.signals.end(), options.checkpoint_signal);
  if (both == options.signals.end()) return;
  if (ending && checkpoint) {
    reader.wrong(reader.find("checkpoint-signal")->shown,
                 "contradicts {}: a signal either asks for a checkpoint or ends the workers; leave "
                 "{} out of one of them",
                 reader.find("signals-to-handle")->shown, signal_name(*both));
  } else if (ending) {
    options.checkpoint_signal = 0;
  } else {
    options.signals.erase(both);
  }
}

}  // namespace

void read_limit_flags(FlagReader& reader, Options& options) {
  const auto restarts = [](const std::string& text) {
    return parse_integer(text, 0, kMaxRestarts);
  };
  const auto standbys = [](const std::string& text) {
    return parse_integer(text, 0, kMaxStandbys);
  };
  reader.take("max-restarts", restarts, options.max_restarts);
  options.restart_on_start_failure = reader.has("restart-on-start-failure");
  reader.take("max-no-progress", restarts, options.max_no_progress);
  reader.take("standby", standbys, options.standby);
  reader.take("progress-timeout", seconds_or_none, options.progress_timeout_ms);
  reader.take("scale-up-timeout", seconds_or_none, options.scale_up_ms);
  reader.take("last-call", seconds_or_none, options.last_call_ms);
  reader.take("join-timeout", seconds, options.join_timeout_ms);
  reader.take("coordinator-timeout", seconds_or_none, options.coordinator_timeout_ms);
  reader.take("exit-barrier-timeout", seconds_or_none, options.exit_barrier_ms);
  read_stop_timeout(reader, options);
  read_signals(reader, options);
  reader.value<std::int64_t>("monitor-interval", seconds_or_none);  // It has no effect.
}

}  // namespace ddp::run
