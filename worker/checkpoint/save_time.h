#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/snapshot_writer.h"

namespace ddp::checkpoint {

// The time of one save: its clock, waiting, the rate limit, and whether it was cancelled. For the
// writers.
class SaveTime {
 public:
  // The options must outlive the object. 0 bytes per second: no limit.
  SaveTime(const WriterOptions& options, std::uint64_t bytes_per_second);

  // Since the object was made.
  double seconds() const { return std::chrono::duration<double>(now() - begin_).count(); }
  TimePoint now() const { return options_->now ? options_->now() : Clock::now(); }
  // kAborted if the save has been cancelled.
  Result<void> alive() const;
  // Waits in short pieces, so that a cancelled save ends soon.
  Result<void> wait(std::chrono::nanoseconds time) const;
  // A pace for writing at the given rate. Valid as long as this object.
  WritePace pace();

 private:
  Result<void> take(std::size_t bytes);

  const WriterOptions* options_;
  std::uint64_t rate_;
  TimePoint begin_;
  TimePoint next_;  // When the next piece may go.
};

}  // namespace ddp::checkpoint
