#include "launcher/rendezvous/curve.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace ddp::rendezvous {
namespace {

// 68 years of points.
constexpr Duration kLongestInterval{std::int64_t{1} << 32};

Curve::Point joined(const Curve::Point& a, const Curve::Point& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const std::size_t count = a.count + b.count;
  const double part = static_cast<double>(b.count) / static_cast<double>(count);
  return {a.mean * (1 - part) + b.mean * part, std::min(a.least, b.least), std::max(a.most, b.most),
          count};
}

}  // namespace

void Curve::add(Duration at, double value) {
  if (!std::isfinite(value)) return;
  while (static_cast<std::size_t>(at / interval_) >= kMaxPoints) {
    interval_ *= 2;
    if (points_.size() % 2 == 1) points_.emplace_back();
    for (std::size_t i = 0; i < points_.size() / 2; ++i)
      points_[i] = joined(points_[2 * i], points_[2 * i + 1]);
    points_.resize(points_.size() / 2);
  }
  const auto index = static_cast<std::size_t>(at / interval_);
  if (points_.size() <= index) points_.resize(index + 1);
  points_[index] = joined(points_[index], {value, value, value, 1});
}

Curve Curve::restored(const nlohmann::json& told) {
  Curve curve;
  const auto interval = told.at("interval_ms").get<std::int64_t>();
  while (curve.interval_.count() < interval && curve.interval_ < kLongestInterval)
    curve.interval_ *= 2;
  const auto count = static_cast<std::size_t>(curve.interval_ / kFirstInterval);
  for (const nlohmann::json& point : told.at("points")) {
    const auto index = point.at(0).get<std::size_t>();
    if (index >= kMaxPoints) continue;
    if (curve.points_.size() <= index) curve.points_.resize(index + 1);
    curve.points_[index] = {point.at(1).get<double>(), point.at(2).get<double>(),
                            point.at(3).get<double>(), count};
  }
  return curve;
}

nlohmann::json to_json(const Curve& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (std::size_t i = 0; i < curve.points().size(); ++i) {
    const Curve::Point& point = curve.points()[i];
    if (point.count > 0) points.push_back({i, point.mean, point.least, point.most});
  }
  return {{"interval_ms", curve.interval().count()}, {"points", std::move(points)}};
}

}  // namespace ddp::rendezvous
