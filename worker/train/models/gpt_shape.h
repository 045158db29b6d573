#pragma once

#include <cstdint>

namespace ddp::train {

struct GptShape {
  std::int64_t layers = 4;
  std::int64_t heads = 4;      // Divides width.
  std::int64_t width = 128;    // Of what passes between the layers.
  std::int64_t context = 128;  // Bytes that the next one is told from, at most.
};

}  // namespace ddp::train
