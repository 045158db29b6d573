#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "worker/engine_config/config.h"

namespace ddp::engine {

// The factor for losses that keeps float16 gradients from vanishing or overflowing: DeepSpeed's
// dynamic loss scaling, or a fixed scale. The same on all ranks if all report the same overflows.
class LossScaler {
 public:
  explicit LossScaler(const Fp16Config& config);

  double scale() const { return scale_; }
  // Call it after each update. `overflowed`: whether a gradient was infinite or NaN, so that the
  // update was skipped. `hysteresis` overflows halve the scale; `loss_scale_window` updates without
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
