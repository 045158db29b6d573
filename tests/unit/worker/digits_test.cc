#include "worker/train/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace ddp::train {
namespace {

// FNV-1a, 64 bits.
std::uint64_t digest(const ImageSet& set) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const auto* part : {&set.pixels, &set.labels}) {
    for (const std::uint8_t byte : *part) hash = (hash ^ byte) * 0x100000001b3;
  }
  return hash;
}

TEST(Digits, TheSameSeedGivesTheSameBytesOnEveryMachine) {
  EXPECT_EQ(digest(draw_digits(1000, 1, DigitsPart::kTrain)), 18088706645910579172U);
  EXPECT_EQ(digest(random_images(1000, 1, DigitsPart::kTrain)), 8674317386014982319U);
}

TEST(Digits, SeedsAndPartsShareNoImage) {
  const ImageSet one = draw_digits(50, 1, DigitsPart::kTrain);
  const ImageSet other_seed = draw_digits(50, 2, DigitsPart::kTrain);
  const ImageSet test_part = draw_digits(50, 1, DigitsPart::kTest);
  const auto image = [](const ImageSet& set, std::size_t i) {
    return std::span(set.pixels).subspan(i * set.image_bytes(), set.image_bytes());
  };
  for (std::size_t i = 0; i < 50; ++i) {
    for (std::size_t j = 0; j < 50; ++j) {
      EXPECT_FALSE(std::ranges::equal(image(one, i), image(other_seed, j)));
      EXPECT_FALSE(std::ranges::equal(image(one, i), image(test_part, j)));
    }
  }
}

TEST(Digits, ImagesHaveMnistsFormAndEqualSharesOfTheClasses) {
  const ImageSet set = draw_digits(1000, 3, DigitsPart::kTrain);
  EXPECT_EQ(set.count, 1000U);
  EXPECT_EQ(set.rows, 28U);
  EXPECT_EQ(set.columns, 28U);
  EXPECT_EQ(set.pixels.size(), 784000U);
  for (int digit = 0; digit < 10; ++digit) {
    EXPECT_EQ(std::count(set.labels.begin(), set.labels.end(), digit), 100);
  }
  EXPECT_FALSE(std::is_sorted(set.labels.begin(), set.labels.begin() + 20));
  for (std::size_t i = 0; i < set.count; ++i) {
    const auto first = set.pixels.begin() + static_cast<std::ptrdiff_t>(i * 784);
    const auto ink = std::count_if(first, first + 784, [](std::uint8_t v) { return v > 100; });
    EXPECT_GT(ink, 15) << "image " << i << " is nearly blank";
    EXPECT_LT(ink, 300) << "image " << i << " is nearly full";
  }
}

// Multinomial logistic regression by plain gradient descent: what can be had without looking at
// shapes.
double linear_accuracy(const ImageSet& train, const ImageSet& test) {
  constexpr std::size_t kPixels = 784;
  std::vector<std::array<float, kPixels + 1>> weights(10);
  const auto scores = [&weights](const std::uint8_t* pixels) {
    std::array<float, 10> score{};
    for (std::size_t c = 0; c < 10; ++c) {
      float sum = weights[c][kPixels];
      for (std::size_t p = 0; p < kPixels; ++p) {
        sum += weights[c][p] * (static_cast<float>(pixels[p]) / 255.0F);
      }
      score[c] = sum;
    }
    return score;
  };
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (std::size_t i = 0; i < train.count; ++i) {
      const std::uint8_t* pixels = &train.pixels[i * kPixels];
      auto score = scores(pixels);
      const float top = *std::max_element(score.begin(), score.end());
      float total = 0;
      for (float& s : score) total += s = std::exp(s - top);
      for (std::size_t c = 0; c < 10; ++c) {
        const float step = 0.01F * ((c == train.labels[i] ? 1.0F : 0.0F) - score[c] / total);
        for (std::size_t p = 0; p < kPixels; ++p) {
          weights[c][p] += step * (static_cast<float>(pixels[p]) / 255.0F);
        }
        weights[c][kPixels] += step;
      }
    }
  }
  std::size_t correct = 0;
  for (std::size_t i = 0; i < test.count; ++i) {
    const auto score = scores(&test.pixels[i * kPixels]);
    const auto best = std::max_element(score.begin(), score.end()) - score.begin();
    correct += static_cast<std::size_t>(best) == test.labels[i] ? 1 : 0;
  }
  return static_cast<double>(correct) / static_cast<double>(test.count);
}

TEST(Digits, ALinearClassifierStaysClearlyBelowNinetySevenPercent) {
  const double accuracy = linear_accuracy(draw_digits(4000, 1, DigitsPart::kTrain),
                                          draw_digits(1000, 1, DigitsPart::kTest));
  EXPECT_GT(accuracy, 0.4) << "the classes are hardly there";
  EXPECT_LT(accuracy, 0.9);
  std::printf("accuracy of a linear classifier: %.3f\n", accuracy);
}

}  // namespace
}  // namespace ddp::train
