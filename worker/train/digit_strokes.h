#pragma once

#include <span>
#include <vector>

namespace ddp::train {

struct StrokePoint {
  double x;  // 0 left .. 1 right.
  double y;  // 0 top .. 1 bottom.
};

// One movement of the pen through its points: along a smooth curve or straight from point to point.
struct Stroke {
  bool smooth;
  std::vector<StrokePoint> points;
};

// One way of writing a digit.
using DigitShape = std::vector<Stroke>;

// The ways of writing `digit`, 0 to 9.
std::span<const DigitShape> digit_shapes(int digit);

}  // namespace ddp::train
