#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::train {

// Grey images of one size, each with a class, as in MNIST.
struct ImageSet {
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> pixels;  // count * rows * columns, row by row; 0 is background.
  std::vector<std::uint8_t> labels;  // count, each below 10.

  std::size_t image_bytes() const { return rows * columns; }
};

}  // namespace ddp::train
