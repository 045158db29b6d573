#include "worker/engine_config/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace ddp::engine {

LossScaler::LossScaler(const Fp16Config& config)
    : config_(config),
      scale_(!config.enabled          ? 1
             : config.loss_scale != 0 ? config.loss_scale
                                      : std::ldexp(1.0, config.initial_scale_power)),
      hysteresis_left_(config.hysteresis) {}

void LossScaler::update(bool overflowed) {
  if (!config_.enabled || config_.loss_scale != 0) return;
  if (overflowed) {
    good_updates_ = 0;
    if (--hysteresis_left_ > 0) return;
    hysteresis_left_ = 1;
    scale_ = std::max(scale_ / 2, config_.min_loss_scale);
    return;
  }
  if (++good_updates_ % config_.loss_scale_window != 0) return;
  hysteresis_left_ = config_.hysteresis;
  scale_ *= 2;
}

nlohmann::json LossScaler::state() const {
  return {
      {"scale", scale_}, {"hysteresis_left", hysteresis_left_}, {"good_updates", good_updates_}};
}

void LossScaler::load_state(const nlohmann::json& state) {
  const double scale = state.at("scale").get<double>();
  const int left = state.at("hysteresis_left").get<int>();
  good_updates_ = state.at("good_updates").get<std::int64_t>();
  scale_ = scale;
  hysteresis_left_ = left;
}

}  // namespace ddp::engine
