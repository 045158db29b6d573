#pragma once

#include <cstdint>

namespace ddp {

// The position in a training: after `step` updates, in epoch `epoch` (from 0).
struct TrainingPlace {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};

}  // namespace ddp
