#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ddp::status {

// A curve of the page's document as one line of text: `width` columns over the whole time, each as
// high as the mean of the values in its part of it; a blank where there are none. `elapsed_ms`: the
// whole time. Without `blocks`, of ASCII characters.
std::string sparkline(const nlohmann::json& curve, double elapsed_ms, int width, bool blocks);

struct CurveRange {
  double now = 0;
  double least = 0;
  double most = 0;
};

// Its last value and its extremes. The curve has at least one point.
CurveRange range_of(const nlohmann::json& curve);

}  // namespace ddp::status
