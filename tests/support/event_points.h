#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "worker/tensorboard/event.h"

namespace ddp::test {

// An event file of TensorBoard, read without a look at its checksums.
class EventPoints {
 public:
  explicit EventPoints(const std::filesystem::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    const std::string bytes = out.str();
    for (std::size_t at = 0; at < bytes.size();) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      const auto event = tensorboard::decode_event(std::string_view(bytes).substr(at + 12, length));
      for (const std::string& tag : event.value().tags) points_.push_back({tag, event->step, at});
      at += 12 + length + 4;
    }
  }

  // "STEP TAG" of every scalar, as they come.
  std::vector<std::string> lines() const {
    std::vector<std::string> found;
    for (const Point& point : points_)
      found.push_back(std::to_string(point.step) + " " + point.tag);
    return found;
  }
  std::vector<std::int64_t> steps_of(std::string_view tag) const {
    std::vector<std::int64_t> found;
    for (const Point& point : points_) {
      if (point.tag == tag) found.push_back(point.step);
    }
    return found;
  }
  // The byte at which the last record with this tag begins.
  std::size_t last_of(std::string_view tag) const {
    std::size_t at = 0;
    for (const Point& point : points_) {
      if (point.tag == tag) at = point.at;
    }
    return at;
  }

 private:
  struct Point {
    std::string tag;
    std::int64_t step = 0;
    std::size_t at = 0;
  };
  std::vector<Point> points_;
};

}  // namespace ddp::test
