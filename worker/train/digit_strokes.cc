#include "worker/train/digit_strokes.h"

#include <array>
#include <cstddef>

#include "common/base/check.h"

// One constant per stroke, shape and digit: kP<digit><shape><stroke> are the points.
namespace ddp::train {
namespace {

constexpr std::array kP0a0 = {StrokePoint{0.5, 0.08},  StrokePoint{0.74, 0.26},
                              StrokePoint{0.77, 0.6},  StrokePoint{0.52, 0.92},
                              StrokePoint{0.25, 0.66}, StrokePoint{0.25, 0.28},
                              StrokePoint{0.5, 0.08}};
constexpr std::array kStrokes0a = {Stroke{true, kP0a0}};
constexpr std::array kP0b0 = {StrokePoint{0.56, 0.07}, StrokePoint{0.4, 0.12},
                              StrokePoint{0.32, 0.5},  StrokePoint{0.42, 0.9},
                              StrokePoint{0.6, 0.86},  StrokePoint{0.68, 0.48},
                              StrokePoint{0.56, 0.07}, StrokePoint{0.46, 0.1}};
constexpr std::array kStrokes0b = {Stroke{true, kP0b0}};
constexpr std::array kP0c0 = {
    StrokePoint{0.5, 0.1},  StrokePoint{0.76, 0.3}, StrokePoint{0.74, 0.7}, StrokePoint{0.48, 0.9},
    StrokePoint{0.24, 0.7}, StrokePoint{0.26, 0.3}, StrokePoint{0.52, 0.1}};
constexpr std::array kP0c1 = {StrokePoint{0.66, 0.24}, StrokePoint{0.34, 0.78}};
constexpr std::array kStrokes0c = {Stroke{true, kP0c0}, Stroke{false, kP0c1}};
constexpr std::array kShapes0 = {DigitShape{kStrokes0a}, DigitShape{kStrokes0b},
                                 DigitShape{kStrokes0c}};

constexpr std::array kP1a0 = {StrokePoint{0.5, 0.08}, StrokePoint{0.5, 0.92}};
constexpr std::array kStrokes1a = {Stroke{false, kP1a0}};
constexpr std::array kP1b0 = {StrokePoint{0.34, 0.28}, StrokePoint{0.53, 0.08},
                              StrokePoint{0.53, 0.92}};
constexpr std::array kStrokes1b = {Stroke{false, kP1b0}};
constexpr std::array kP1c0 = {StrokePoint{0.34, 0.26}, StrokePoint{0.52, 0.08},
                              StrokePoint{0.52, 0.92}};
constexpr std::array kP1c1 = {StrokePoint{0.32, 0.92}, StrokePoint{0.72, 0.92}};
constexpr std::array kStrokes1c = {Stroke{false, kP1c0}, Stroke{false, kP1c1}};
constexpr std::array kShapes1 = {DigitShape{kStrokes1a}, DigitShape{kStrokes1b},
                                 DigitShape{kStrokes1c}};

constexpr std::array kP2a0 = {StrokePoint{0.26, 0.28}, StrokePoint{0.38, 0.1},
                              StrokePoint{0.62, 0.1},  StrokePoint{0.72, 0.3},
                              StrokePoint{0.56, 0.56}, StrokePoint{0.26, 0.9}};
constexpr std::array kP2a1 = {StrokePoint{0.26, 0.9}, StrokePoint{0.77, 0.9}};
constexpr std::array kStrokes2a = {Stroke{true, kP2a0}, Stroke{false, kP2a1}};
constexpr std::array kP2b0 = {
    StrokePoint{0.26, 0.26}, StrokePoint{0.45, 0.08}, StrokePoint{0.7, 0.22},
    StrokePoint{0.6, 0.54},  StrokePoint{0.34, 0.86}, StrokePoint{0.23, 0.8},
    StrokePoint{0.36, 0.72}, StrokePoint{0.56, 0.86}, StrokePoint{0.78, 0.84}};
constexpr std::array kStrokes2b = {Stroke{true, kP2b0}};
constexpr std::array kP2c0 = {StrokePoint{0.24, 0.2}, StrokePoint{0.5, 0.08},
                              StrokePoint{0.74, 0.24}, StrokePoint{0.6, 0.5},
                              StrokePoint{0.3, 0.7}};
constexpr std::array kP2c1 = {StrokePoint{0.3, 0.7}, StrokePoint{0.24, 0.92},
                              StrokePoint{0.76, 0.92}};
constexpr std::array kStrokes2c = {Stroke{true, kP2c0}, Stroke{false, kP2c1}};
constexpr std::array kShapes2 = {DigitShape{kStrokes2a}, DigitShape{kStrokes2b},
                                 DigitShape{kStrokes2c}};

constexpr std::array kP3a0 = {StrokePoint{0.27, 0.18}, StrokePoint{0.5, 0.07},
                              StrokePoint{0.7, 0.24}, StrokePoint{0.44, 0.46}};
constexpr std::array kP3a1 = {StrokePoint{0.44, 0.46}, StrokePoint{0.74, 0.66},
                              StrokePoint{0.56, 0.92}, StrokePoint{0.25, 0.82}};
constexpr std::array kStrokes3a = {Stroke{true, kP3a0}, Stroke{true, kP3a1}};
constexpr std::array kP3b0 = {StrokePoint{0.27, 0.1}, StrokePoint{0.72, 0.1},
                              StrokePoint{0.48, 0.42}};
constexpr std::array kP3b1 = {StrokePoint{0.48, 0.42}, StrokePoint{0.74, 0.62},
                              StrokePoint{0.56, 0.92}, StrokePoint{0.26, 0.84}};
constexpr std::array kStrokes3b = {Stroke{false, kP3b0}, Stroke{true, kP3b1}};
constexpr std::array kP3c0 = {
    StrokePoint{0.26, 0.14}, StrokePoint{0.58, 0.08}, StrokePoint{0.68, 0.26},
    StrokePoint{0.5, 0.45},  StrokePoint{0.42, 0.47}, StrokePoint{0.54, 0.48},
    StrokePoint{0.74, 0.68}, StrokePoint{0.52, 0.92}, StrokePoint{0.24, 0.86}};
constexpr std::array kStrokes3c = {Stroke{true, kP3c0}};
constexpr std::array kShapes3 = {DigitShape{kStrokes3a}, DigitShape{kStrokes3b},
                                 DigitShape{kStrokes3c}};

constexpr std::array kP4a0 = {StrokePoint{0.36, 0.1}, StrokePoint{0.25, 0.56},
                              StrokePoint{0.77, 0.56}};
constexpr std::array kP4a1 = {StrokePoint{0.62, 0.32}, StrokePoint{0.62, 0.92}};
constexpr std::array kStrokes4a = {Stroke{false, kP4a0}, Stroke{false, kP4a1}};
constexpr std::array kP4b0 = {StrokePoint{0.62, 0.92}, StrokePoint{0.62, 0.08},
                              StrokePoint{0.22, 0.62}, StrokePoint{0.8, 0.62}};
constexpr std::array kStrokes4b = {Stroke{false, kP4b0}};
constexpr std::array kP4c0 = {StrokePoint{0.3, 0.1}, StrokePoint{0.26, 0.36},
                              StrokePoint{0.34, 0.52}, StrokePoint{0.64, 0.5}};
constexpr std::array kP4c1 = {StrokePoint{0.7, 0.1}, StrokePoint{0.62, 0.92}};
constexpr std::array kStrokes4c = {Stroke{true, kP4c0}, Stroke{false, kP4c1}};
constexpr std::array kShapes4 = {DigitShape{kStrokes4a}, DigitShape{kStrokes4b},
                                 DigitShape{kStrokes4c}};

constexpr std::array kP5a0 = {StrokePoint{0.73, 0.1}, StrokePoint{0.34, 0.1},
                              StrokePoint{0.3, 0.45}};
constexpr std::array kP5a1 = {StrokePoint{0.3, 0.45}, StrokePoint{0.55, 0.38},
                              StrokePoint{0.74, 0.62}, StrokePoint{0.58, 0.89},
                              StrokePoint{0.26, 0.86}};
constexpr std::array kStrokes5a = {Stroke{false, kP5a0}, Stroke{true, kP5a1}};
constexpr std::array kP5b0 = {StrokePoint{0.72, 0.13}, StrokePoint{0.42, 0.11},
                              StrokePoint{0.32, 0.4},  StrokePoint{0.6, 0.46},
                              StrokePoint{0.72, 0.68}, StrokePoint{0.52, 0.91},
                              StrokePoint{0.26, 0.82}};
constexpr std::array kStrokes5b = {Stroke{true, kP5b0}};
constexpr std::array kP5c0 = {StrokePoint{0.34, 0.12}, StrokePoint{0.32, 0.46}};
constexpr std::array kP5c1 = {StrokePoint{0.32, 0.46}, StrokePoint{0.6, 0.42},
                              StrokePoint{0.74, 0.66}, StrokePoint{0.54, 0.9},
                              StrokePoint{0.28, 0.84}};
constexpr std::array kP5c2 = {StrokePoint{0.34, 0.12}, StrokePoint{0.76, 0.08}};
constexpr std::array kStrokes5c = {Stroke{false, kP5c0}, Stroke{true, kP5c1}, Stroke{false, kP5c2}};
constexpr std::array kShapes5 = {DigitShape{kStrokes5a}, DigitShape{kStrokes5b},
                                 DigitShape{kStrokes5c}};

constexpr std::array kP6a0 = {StrokePoint{0.66, 0.1},  StrokePoint{0.4, 0.3},
                              StrokePoint{0.27, 0.64}, StrokePoint{0.42, 0.9},
                              StrokePoint{0.68, 0.8},  StrokePoint{0.66, 0.57},
                              StrokePoint{0.44, 0.53}, StrokePoint{0.29, 0.68}};
constexpr std::array kStrokes6a = {Stroke{true, kP6a0}};
constexpr std::array kP6b0 = {StrokePoint{0.52, 0.06}, StrokePoint{0.29, 0.6}};
constexpr std::array kP6b1 = {StrokePoint{0.29, 0.6}, StrokePoint{0.46, 0.5},
                              StrokePoint{0.7, 0.68}, StrokePoint{0.5, 0.92},
                              StrokePoint{0.3, 0.8},  StrokePoint{0.29, 0.6}};
constexpr std::array kStrokes6b = {Stroke{false, kP6b0}, Stroke{true, kP6b1}};
constexpr std::array kP6c0 = {StrokePoint{0.6, 0.07},  StrokePoint{0.3, 0.4},
                              StrokePoint{0.26, 0.78}, StrokePoint{0.5, 0.93},
                              StrokePoint{0.72, 0.74}, StrokePoint{0.5, 0.58},
                              StrokePoint{0.28, 0.74}};
constexpr std::array kStrokes6c = {Stroke{true, kP6c0}};
constexpr std::array kShapes6 = {DigitShape{kStrokes6a}, DigitShape{kStrokes6b},
                                 DigitShape{kStrokes6c}};

constexpr std::array kP7a0 = {StrokePoint{0.25, 0.1}, StrokePoint{0.75, 0.1},
                              StrokePoint{0.42, 0.92}};
constexpr std::array kStrokes7a = {Stroke{false, kP7a0}};
constexpr std::array kP7b0 = {StrokePoint{0.25, 0.1}, StrokePoint{0.75, 0.1},
                              StrokePoint{0.44, 0.92}};
constexpr std::array kP7b1 = {StrokePoint{0.36, 0.5}, StrokePoint{0.7, 0.5}};
constexpr std::array kStrokes7b = {Stroke{false, kP7b0}, Stroke{false, kP7b1}};
constexpr std::array kP7c0 = {StrokePoint{0.25, 0.18}, StrokePoint{0.28, 0.1},
                              StrokePoint{0.5, 0.1},   StrokePoint{0.74, 0.11},
                              StrokePoint{0.58, 0.45}, StrokePoint{0.46, 0.92}};
constexpr std::array kStrokes7c = {Stroke{true, kP7c0}};
constexpr std::array kShapes7 = {DigitShape{kStrokes7a}, DigitShape{kStrokes7b},
                                 DigitShape{kStrokes7c}};

constexpr std::array kP8a0 = {StrokePoint{0.5, 0.08}, StrokePoint{0.68, 0.26},
                              StrokePoint{0.5, 0.46}, StrokePoint{0.32, 0.26},
                              StrokePoint{0.5, 0.08}};
constexpr std::array kP8a1 = {StrokePoint{0.5, 0.46}, StrokePoint{0.74, 0.7},
                              StrokePoint{0.5, 0.92}, StrokePoint{0.26, 0.7},
                              StrokePoint{0.5, 0.46}};
constexpr std::array kStrokes8a = {Stroke{true, kP8a0}, Stroke{true, kP8a1}};
constexpr std::array kP8b0 = {StrokePoint{0.68, 0.18}, StrokePoint{0.46, 0.08},
                              StrokePoint{0.32, 0.25}, StrokePoint{0.52, 0.46},
                              StrokePoint{0.72, 0.7},  StrokePoint{0.5, 0.92},
                              StrokePoint{0.28, 0.72}, StrokePoint{0.48, 0.48},
                              StrokePoint{0.66, 0.3},  StrokePoint{0.68, 0.18}};
constexpr std::array kStrokes8b = {Stroke{true, kP8b0}};
constexpr std::array kP8c0 = {StrokePoint{0.5, 0.08}, StrokePoint{0.64, 0.2}, StrokePoint{0.5, 0.4},
                              StrokePoint{0.36, 0.22}, StrokePoint{0.5, 0.08}};
constexpr std::array kP8c1 = {StrokePoint{0.5, 0.4},   StrokePoint{0.72, 0.6},
                              StrokePoint{0.64, 0.88}, StrokePoint{0.4, 0.9},
                              StrokePoint{0.28, 0.66}, StrokePoint{0.5, 0.4}};
constexpr std::array kStrokes8c = {Stroke{true, kP8c0}, Stroke{true, kP8c1}};
constexpr std::array kShapes8 = {DigitShape{kStrokes8a}, DigitShape{kStrokes8b},
                                 DigitShape{kStrokes8c}};

constexpr std::array kP9a0 = {StrokePoint{0.5, 0.08}, StrokePoint{0.7, 0.26}, StrokePoint{0.5, 0.5},
                              StrokePoint{0.3, 0.28}, StrokePoint{0.5, 0.08}};
constexpr std::array kP9a1 = {StrokePoint{0.69, 0.26}, StrokePoint{0.64, 0.92}};
constexpr std::array kStrokes9a = {Stroke{true, kP9a0}, Stroke{false, kP9a1}};
constexpr std::array kP9b0 = {StrokePoint{0.7, 0.22}, StrokePoint{0.48, 0.08},
                              StrokePoint{0.3, 0.28}, StrokePoint{0.46, 0.5},
                              StrokePoint{0.7, 0.28}, StrokePoint{0.7, 0.55},
                              StrokePoint{0.6, 0.88}, StrokePoint{0.34, 0.88}};
constexpr std::array kStrokes9b = {Stroke{true, kP9b0}};
constexpr std::array kP9c0 = {StrokePoint{0.68, 0.14}, StrokePoint{0.42, 0.12},
                              StrokePoint{0.3, 0.34}, StrokePoint{0.5, 0.5}, StrokePoint{0.7, 0.3}};
constexpr std::array kP9c1 = {StrokePoint{0.7, 0.12}, StrokePoint{0.7, 0.92}};
constexpr std::array kStrokes9c = {Stroke{true, kP9c0}, Stroke{false, kP9c1}};
constexpr std::array kShapes9 = {DigitShape{kStrokes9a}, DigitShape{kStrokes9b},
                                 DigitShape{kStrokes9c}};

constexpr std::array<std::span<const DigitShape>, 10> kDigits = {
    kShapes0, kShapes1, kShapes2, kShapes3, kShapes4,
    kShapes5, kShapes6, kShapes7, kShapes8, kShapes9};

}  // namespace

std::span<const DigitShape> digit_shapes(int digit) {
  DDP_CHECK(digit >= 0 && digit <= 9, "digit {}", digit);
  return kDigits[static_cast<std::size_t>(digit)];
}

}  // namespace ddp::train
