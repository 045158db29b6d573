#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/clock.h"

namespace ddp::server {

// Limits log lines that clients can cause to `lines` in each `interval`, so that a flood of them
// fills no disk and takes no time from other clients.
class LogLimit {
 public:
  LogLimit(int lines, Duration interval) : lines_(lines), interval_(interval) {}

  // Nothing if the line must not be written now. Otherwise how many lines were left out since the
  // last one written.
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
  std::optional<TimePoint> began_;  // Start of the current interval.
  int written_ = 0;                 // Lines in the current interval.
  std::uint64_t left_out_ = 0;
};

}  // namespace ddp::server
