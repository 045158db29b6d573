#pragma once

#include <cstdint>

namespace ddp::checkpoint {

// Which checkpoints to keep when a new one has been published.
struct Retention {
  int keep = 0;                 // How many of the newest; 0: all.
  std::int64_t keep_every = 0;  // Also keep steps divisible by it; 0: none.
};

}  // namespace ddp::checkpoint
