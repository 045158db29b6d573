#pragma once

#include <cstdint>

namespace ddp::checkpoint {

// Which checkpoints stay when a new one is there.
struct Retention {
  int keep = 0;                 // The newest so many; 0: all.
  std::int64_t keep_every = 0;  // Beyond those, steps divisible by it stay for ever; 0: none do.
};

}  // namespace ddp::checkpoint
