#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/clock.h"

namespace ddp::server {

// Keeps a line of the log that clients can cause from being written without end: at most `lines` of
// them in `interval`, so that a flood costs neither the disk nor the other clients' time.
class LogLimit {
 public:
  LogLimit(int lines, Duration interval) : lines_(lines), interval_(interval) {}

  // Whether the line may be written now, and how many were left out since the last one that was.
  std::optional<std::uint64_t> admit(TimePoint now) {
    if (!began_ || now - *began_ >= interval_) {
      began_ = now;
      written_ = 0;
    }
    if (written_ == lines_) {
      ++left_out_;
      return std::nullopt;
    }
    ++written_;
    return std::exchange(left_out_, 0);
  }

 private:
  int lines_;
  Duration interval_;
  std::optional<TimePoint> began_;  // The interval under way.
  int written_ = 0;                 // In it.
  std::uint64_t left_out_ = 0;
};

}  // namespace ddp::server
