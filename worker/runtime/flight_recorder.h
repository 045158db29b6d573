#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/flight_recorder.h"

namespace ddp {

// Writes what one group does into its rank's flight recorder, which outlives the rank
// (common/wire/flight_recorder.h). Always on: an event costs a look at the clock and a few dozen
// nanoseconds. Any thread; all groups of a rank share the rings. An event that meets another one on
// the same entry, 256 operations or 128 messages apart, is dropped. A copy writes for the same
// group.
class FlightRecorder {
 public:
  struct Issue {
    std::uint64_t sequence = 0;
    std::uint64_t count = 0;
    Rank root = -1;
    std::string_view type;       // The first 4 bytes are kept,
    std::string_view operation;  // 16,
    std::string_view tag;        // 24.
    std::size_t element_bytes = 0;
    std::uint32_t message_tag = 0;
  };
  using Slot = std::uint64_t;  // Names one operation for good; 0: none.

  // `flight`: kFlightBytes at the begin of the rank's region. `rank`: in the world.
  FlightRecorder(std::byte* flight, Rank rank, std::string_view group_name);

  // at: the time of the issue. started: it is being executed from then on.
  Slot issued(const Issue& issue, TimePoint at = Clock::now(), bool started = false);
  // The same of a message, to or from the world's rank `root`, that has come as far as `state`.
  Slot message(const Issue& issue, TimePoint at, wire::FlightState state);
  void started(Slot slot);
  void finished(Slot slot, bool ok);

  // Appends what the rank's recorder holds to the file that DDP_FLIGHT_DUMP names, as JSON lines;
  // if it names one. For when the group has failed.
  void dump_on_request() const;

 private:
  // Of messages.
  static constexpr Slot kMessage = Slot{1} << 63;

  wire::FlightEntry& entry(Slot slot) {
    return (slot & kMessage) == 0
               ? ring_->entries[(slot - 1) % wire::kFlightEntries]
               : ring_->message_entries[((slot & ~kMessage) - 1) % wire::kFlightMessages];
  }
  void begin(Slot slot, const Issue& issue, TimePoint at, wire::FlightState state);
  void change(Slot slot, wire::FlightState state);

  wire::FlightRing* ring_;
  std::uint32_t group_;
};

}  // namespace ddp
