#pragma once

#include <cstdint>

#include "common/base/clock.h"

// When a worker failed. That may be long before it ended: after an exception, an interpreter still
// runs its exit handlers.
namespace ddp::agent {

// What is known of the failure, in milliseconds since the epoch by this node's clock.
struct FailureClues {
  std::int64_t ended_ms = 0;  // When its process was seen to have ended.
  std::int64_t stamp_ms = 0;  // The time in its error file, in whole seconds; 0: none.
  // When its error file was written, by the file system; 0: none.
  std::int64_t written_ms = 0;
};

// The time of the failure. The error file gives the second. If the file was written within that
// second, the time of writing gives the milliseconds. Otherwise the end of the second is taken, so
// that a failure that may be the later one is not put first. If the file holds no time, the failure
// was when the file was written. Pure.
std::int64_t failure_time(const FailureClues& clues);

// The clock by which local file systems stamp files, so that ends of processes and files are in one
// order. It may give two events the same time, but never the later one an earlier time. Before
// Linux 6.13 it advances in ticks of a few milliseconds.
std::int64_t file_clock_ms();

// How long ago that time is, by the same clock without its ticks; never negative.
Duration age_of(std::int64_t time_ms);

// When the file was last written, by that clock; 0 if there is none.
std::int64_t written_ms(const char* path);

}  // namespace ddp::agent
