#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/snapshot_writer.h"

namespace ddp::checkpoint {

// Time and its end for one save: the clock, the waiting, the limit of the rate, and whether it was
// cancelled. For the writers.
class SaveTime {
 public:
  // The options outlive the object. 0 bytes a second: no limit.
  SaveTime(const WriterOptions& options, std::uint64_t bytes_per_second);

  TimePoint now() const { return options_->now ? options_->now() : Clock::now(); }
  // kAborted if the save has been cancelled.
  Result<void> alive() const;
  // Waits, in pieces, so that a cancelled save ends soon.
  Result<void> wait(std::chrono::nanoseconds time) const;
  // Writing at the given rate. Lives as long as this object.
  WritePace pace();

 private:
  Result<void> take(std::size_t bytes);

  const WriterOptions* options_;
  std::uint64_t rate_;
  TimePoint next_;  // When the next piece may go.
};

}  // namespace ddp::checkpoint
