#pragma once

#include <cstdint>

// When a worker failed, which may be long before it ended: an interpreter that raised goes on to
// run what was registered for its exit.
namespace ddp::agent {

// What is known of it, in milliseconds since the epoch by this node's clock.
struct FailureClues {
  std::int64_t ended_ms = 0;  // When its process was seen to have ended.
  std::int64_t stamp_ms = 0;  // The time in its error file, in whole seconds; 0: none.
  std::int64_t written_ms =
      0;  // When its error file was written, as the file system says; 0: none.
};

// The time of its failure. The second is that in its error file; where the file was written within
// it, which milliseconds is known, else the second's end is taken: what may be later than another
// failure does not go before it. A file without a time failed when it was written. Pure.
std::int64_t failure_time(const FailureClues& clues);

// The clock that local file systems stamp files with, so that ends and files are in one order. It
// may call two events the same, but never the later one earlier: before Linux 6.13 it goes in ticks
// of a few milliseconds.
std::int64_t file_clock_ms();

// When the file was last written, by that clock; 0 if there is none.
std::int64_t written_ms(const char* path);

}  // namespace ddp::agent
