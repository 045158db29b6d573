#include "worker/ddp/hooks/power_sgd_state.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/hooks/hook_state.h"
#include "worker/ddp/hooks/power_sgd_memory.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using nlohmann::json;

constexpr const char* kWho = "PowerSGDState";

// The options that must be the same when training goes on.
json lasting_options(const PowerSGDOptions& options) {
  return {{"matrix_approximation_rank", options.matrix_approximation_rank},
          {"min_compression_rate", options.min_compression_rate},
          {"use_error_feedback", options.use_error_feedback},
          {"warm_start", options.warm_start},
          {"orthogonalization_epsilon", options.orthogonalization_epsilon},
          {"random_seed", options.random_seed}};
}

}  // namespace

void check(const PowerSGDOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw std::invalid_argument(fmt::format("{}: {}", kWho, text));
  };
  if (options.matrix_approximation_rank < 1) {
    refuse(fmt::format("matrix_approximation_rank must be at least 1, not {}",
                       options.matrix_approximation_rank));
  }
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter <= 1) {
    refuse(fmt::format(
        "start_powerSGD_iter must be greater than 1 with use_error_feedback or warm_start, not {}: "
        "buckets are rebuilt after the first step",
        options.start_powerSGD_iter));
  }
  if (options.start_powerSGD_iter < 0) {
    refuse(fmt::format("start_powerSGD_iter must not be negative, it is {}",
                       options.start_powerSGD_iter));
  }
  if (!std::isfinite(options.min_compression_rate) || options.min_compression_rate <= 0) {
    refuse(fmt::format("min_compression_rate must be greater than 0, not {}",
                       options.min_compression_rate));
  }
  if (!std::isfinite(options.orthogonalization_epsilon) || options.orthogonalization_epsilon < 0) {
    refuse(fmt::format("orthogonalization_epsilon must not be negative, it is {}",
                       options.orthogonalization_epsilon));
  }
}

PowerSGDState::PowerSGDState(std::shared_ptr<ProcessGroup> process_group, PowerSGDOptions options)
    : process_group_(std::move(process_group)),
      options_(options),
      memory_(std::make_unique<Memory>()) {
  check(options_);
  options_.compression_stats_logging_frequency =
      std::max<std::int64_t>(1, options_.compression_stats_logging_frequency);
  if (!process_group_) throw std::invalid_argument("PowerSGDState was given no process group");
}

PowerSGDState::~PowerSGDState() = default;

std::int64_t PowerSGDState::iter() const { return memory_->iter; }

CompressionStats PowerSGDState::compression_stats() const {
  CompressionStats stats{0, memory_->numel_before, memory_->numel_after};
  if (stats.numel_after_compression > 0) {
    stats.rate = static_cast<double>(stats.numel_before_compression) /
                 static_cast<double>(stats.numel_after_compression);
  }
  return stats;
}

CommHookState PowerSGDState::state() const {
  CommHookState state;
  state.values = {{"options", lasting_options(options_)},
                  {"iter", memory_->iter},
                  {"numel_before_compression", memory_->numel_before},
                  {"numel_after_compression", memory_->numel_after},
                  {"next_stats_report", memory_->next_report}};
  copy_to(state.per_rank, "error/", memory_->errors);
  copy_to(state.per_rank, "padding/", memory_->paddings);
  if (options_.warm_start) copy_to(state.replicated, "q/", memory_->qs);
  return state;
}

void PowerSGDState::restore(const CommHookState& state) {
  const HookStateReader reader(kWho, state);
  reader.expect_options(lasting_options(options_));
  auto fresh = std::make_unique<Memory>();
  fresh->iter = reader.count("iter");
  fresh->numel_before = reader.count("numel_before_compression");
  fresh->numel_after = reader.count("numel_after_compression");
  fresh->next_report = reader.count("next_stats_report");
  reader.take(state.per_rank, {{"error/", &fresh->errors}, {"padding/", &fresh->paddings}});
  reader.take(state.replicated, {{"q/", &fresh->qs}});
  memory_ = std::move(fresh);
}

}  // namespace ddp
