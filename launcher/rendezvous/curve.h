#pragma once

#include <cstddef>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"

namespace ddp::rendezvous {

// How a value has gone over the whole time of a job, in a bounded memory: at most kMaxPoints
// points, each of an interval of the time. When there are more, two intervals become one, so a job
// of any length has between half and all of them. A point keeps the least and the largest value,
// too, so that a peak stays visible.
class Curve {
 public:
  static constexpr std::size_t kMaxPoints = 600;
  static constexpr Duration kFirstInterval{1'000};

  struct Point {
    double mean = 0;
    double least = 0;
    double most = 0;
    std::size_t count = 0;  // Values; 0: nothing is known of this interval.
  };

  // `at`: since the job began; never less than in an earlier call. Values that are not finite do
  // not count.
  void add(Duration at, double value);
  // A curve of which to_json() has told. Each of its points counts as one value a second. Throws
  // nlohmann::json::exception if it is none.
  static Curve restored(const nlohmann::json& told);

  Duration interval() const { return interval_; }
  // Point i is of the time from i * interval() on.
  const std::vector<Point>& points() const { return points_; }

 private:
  Duration interval_ = kFirstInterval;
  std::vector<Point> points_;
};

// {"interval_ms": n, "points": [[i, mean, least, most], ...]}, without intervals of which nothing
// is known.
nlohmann::json to_json(const Curve& curve);

}  // namespace ddp::rendezvous
