#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ddp::status {

// A curve of the page's document as one line of text: `width` columns over the whole time, each as
// high as the mean of the values in its part of it; a blank where there are none. `elapsed_ms`: the
// whole time. Without `blocks`, of ASCII characters.
std::string sparkline(const nlohmann::json& curve, double elapsed_ms, int width, bool blocks);

struct CurveRange {
  double last = 0;
  bool is_now = false;  // Whether the last value is of the newest intervals.
  double least = 0;
  double most = 0;
};

// Its last value and its extremes. The curve has at least one point. Where points are usually
// farther apart than an interval, because steps are long, the last one is newest for longer.
CurveRange range_of(const nlohmann::json& curve, double elapsed_ms);

}  // namespace ddp::status
