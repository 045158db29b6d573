#include "launcher/status/sparkline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace ddp::status {
namespace {

constexpr std::array<std::string_view, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 8> kLetters{"_", ".", ",", "-", "=", "+", "*", "#"};

struct Column {
  double sum = 0;
  int count = 0;
};

}  // namespace

CurveRange range_of(const nlohmann::json& curve, double elapsed_ms) {
  CurveRange range{.least = std::numeric_limits<double>::infinity(),
                   .most = -std::numeric_limits<double>::infinity()};
  long last = -1;
  for (const auto& [index, point] : curve.at("points").items()) {
    range.least = std::min(range.least, point.at(1).get<double>());
    range.most = std::max(range.most, point.at(2).get<double>());
    if (const long number = std::stol(index); number > last) {
      last = number;
      range.last = point.at(0).get<double>();
    }
  }
  const double now = elapsed_ms / curve.at("interval_ms").get<double>();
  range.is_now = now - static_cast<double>(last) < 2 * curve.at("gap").get<double>();
  return range;
}

std::string sparkline(const nlohmann::json& curve, double elapsed_ms, int width, bool blocks) {
  std::vector<Column> columns(static_cast<std::size_t>(std::max(width, 1)));
  const double interval = curve.at("interval_ms").get<double>();
  const double whole = std::max(elapsed_ms, interval);
  for (const auto& [index, point] : curve.at("points").items()) {
    const double part = (std::stod(index) + 0.5) * interval / whole;
    const auto place = static_cast<std::size_t>(part * static_cast<double>(columns.size()));
    Column& column = columns[std::min(place, columns.size() - 1)];
    column.sum += point.at(0).get<double>();
    ++column.count;
  }
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const Column& column : columns) {
    if (column.count == 0) continue;
    least = std::min(least, column.sum / column.count);
    most = std::max(most, column.sum / column.count);
  }
  std::string line;
  for (const Column& column : columns) {
    if (column.count == 0) {
      line += ' ';
      continue;
    }
    const double part = most > least ? (column.sum / column.count - least) / (most - least) : 0.5;
    const auto height = std::min<std::size_t>(static_cast<std::size_t>(part * 8), 7);
    line += blocks ? kBlocks[height] : kLetters[height];
  }
  return line;
}

}  // namespace ddp::status
