#pragma once

#include <cstdint>

namespace ddp::train {

struct GptShape {
  std::int64_t layers = 4;
  std::int64_t heads = 4;      // Divides width.
  std::int64_t width = 128;    // Embedding size.
  std::int64_t context = 128;  // Most bytes from which the next one is predicted.
};

}  // namespace ddp::train
