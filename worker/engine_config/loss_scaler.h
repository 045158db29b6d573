#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "worker/engine_config/config.h"

namespace ddp::engine {

// By what a loss is multiplied so that float16 gradients neither vanish nor overflow: DeepSpeed's
// dynamic loss scaling, or a fixed scale. Alike on all ranks, if they say alike what overflows.
class LossScaler {
 public:
  explicit LossScaler(const Fp16Config& config);

  double scale() const { return scale_; }
  // After each update: whether its gradients had an infinity or none that is a number, so that it
  // was left out. A row of `hysteresis` halves the scale, `loss_scale_window` updates without
  // one double it.
  void update(bool overflowed);

  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  Fp16Config config_;
  double scale_;
  int hysteresis_left_;
  std::int64_t good_updates_ = 0;  // Since the last overflow or change.
};

}  // namespace ddp::engine
