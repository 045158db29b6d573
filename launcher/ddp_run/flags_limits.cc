// What failures and waiting may cost.
#include <cstdint>

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
  read_stop_timeout(reader, options);
  reader.value<std::int64_t>("monitor-interval", seconds_or_none);  // It has no effect.
}

}  // namespace ddp::run
