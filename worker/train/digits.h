#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/train/image_set.h"

// Digits that look handwritten, without a data set: 28 x 28 images of strokes. There are several
// ways of writing each digit. Each image bends the strokes a little, turns, shears, scales and
// shifts them, draws them with its own thickness and brightness, and adds noise and stray marks.
// Hard for a linear classifier, easy for a small convolutional network.
//
// The images depend on (seed, part, index) alone and are the same bytes on every machine: integer
// random numbers and arithmetic that IEEE 754 fixes exactly (+ - * / and square root; no sine, no
// contraction to fused operations).
namespace ddp::train {

enum class DigitsPart : std::uint8_t { kTrain = 0, kTest = 1 };

// `count` images; the two parts have none in common. All classes have the same share; their order
// is random.
ImageSet draw_digits(std::size_t count, std::uint64_t seed, DigitsPart part);

// Images and labels of random bytes, for measuring speed: there is nothing to learn in them.
ImageSet random_images(std::size_t count, std::uint64_t seed, DigitsPart part);

}  // namespace ddp::train
