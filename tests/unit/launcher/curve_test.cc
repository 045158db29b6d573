#include "launcher/rendezvous/curve.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace ddp::rendezvous {
namespace {

TEST(Curve, KeepsMeanLeastAndMostOfEachInterval) {
  Curve curve;
  curve.add(Duration{100}, 1);
  curve.add(Duration{900}, 4);
  curve.add(Duration{950}, 4);
  curve.add(Duration{3'000}, 7);
  EXPECT_EQ(curve.interval(), Duration{1'000});
  EXPECT_EQ(to_json(curve), nlohmann::json::parse(R"(
      {"interval_ms": 1000, "points": [[0, 3.0, 1.0, 4.0], [3, 7.0, 7.0, 7.0]]})"));
}

TEST(Curve, WhatIsNotFiniteDoesNotCount) {
  Curve curve;
  curve.add(Duration{0}, std::numeric_limits<double>::quiet_NaN());
  curve.add(Duration{0}, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(curve.points().empty());
}

TEST(Curve, GoesOnUnderAnotherCoordinator) {
  Curve curve;
  for (int second = 0; second < 700; ++second) curve.add(Duration{1'000 * second}, second);
  Curve restored = Curve::restored(to_json(curve));
  EXPECT_EQ(restored.interval(), curve.interval());
  for (int second = 700; second < 3'000; ++second) {
    curve.add(Duration{1'000 * second}, second);
    restored.add(Duration{1'000 * second}, second);
  }
  EXPECT_EQ(to_json(restored), to_json(curve));
}

// Another ddp-run may say anything.
TEST(Curve, OthersBytesAreRefusedOrBounded) {
  using nlohmann::json;
  const auto restored = [](const char* text) { return Curve::restored(json::parse(text)); };
  EXPECT_THROW(restored("[]"), json::exception);
  EXPECT_THROW(restored(R"({"interval_ms": 1000, "points": [[0, 1]]})"), json::exception);
  EXPECT_THROW(restored(R"({"interval_ms": 1000, "points": [[0, "a", 1, 1]]})"), json::exception);
  EXPECT_TRUE(
      restored(R"({"interval_ms": 1000, "points": [[999999999, 1, 1, 1]]})").points().empty());
  EXPECT_TRUE(restored(R"({"interval_ms": 1000, "points": [[-1, 1, 1, 1]]})").points().empty());
  EXPECT_EQ(restored(R"({"interval_ms": -5, "points": []})").interval(), Curve::kFirstInterval);
  EXPECT_LT(restored(R"({"interval_ms": 9e18, "points": []})").interval(),
            Duration{1} * (std::int64_t{1} << 33));
}

// A month, with a value a second and one peak.
TEST(Curve, AJobOfAnyLengthHasBetweenHalfAndAllPoints) {
  Curve curve;
  constexpr std::int64_t kSeconds = 30 * 24 * 3'600;
  double sum = 0;
  for (std::int64_t second = 0; second < kSeconds; ++second) {
    const double value = second == 1'000'000 ? 500 : static_cast<double>(second % 10);
    sum += value;
    curve.add(Duration{1'000 * second}, value);
    ASSERT_LE(curve.points().size(), Curve::kMaxPoints);
    if (second < 600) continue;
    ASSERT_GE(curve.points().size(), Curve::kMaxPoints / 2);
  }
  double found = 0;
  std::size_t count = 0;
  double most = 0;
  for (const Curve::Point& point : curve.points()) {
    found += point.mean * static_cast<double>(point.count);
    count += point.count;
    most = std::max(most, point.most);
    EXPECT_EQ(point.least, 0);
  }
  EXPECT_EQ(count, static_cast<std::size_t>(kSeconds));
  EXPECT_NEAR(found, sum, 1e-6 * sum);
  EXPECT_EQ(most, 500);
}

TEST(Curve, ASilenceOfAnyLengthIsKept) {
  Curve curve;
  curve.add(Duration{0}, 1);
  curve.add(Duration{1'000} * 3'600 * 24 * 365, 2);
  EXPECT_EQ(curve.points().front().mean, 1);
  EXPECT_EQ(curve.points().back().mean, 2);
  EXPECT_EQ(to_json(curve).at("points").size(), 2u);
}

}  // namespace
}  // namespace ddp::rendezvous
