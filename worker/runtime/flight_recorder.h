#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/flight_ring.h"
#include "common/wire/trace_ring.h"

namespace ddp::runtime {

// Records what one group does in its rank's flight recorder, which outlives the rank
// (common/wire/flight_ring.h). Always on: an event costs a clock read and a few dozen
// nanoseconds. Any thread; all groups of a rank share the rings. If two events write to the same
// entry at once (256 operations or 128 messages apart), one is dropped. A copy records for the same
// group. While the agent wants a trace, what has ended goes there, too.
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
  using Slot = std::uint64_t;  // Identifies one operation for ever; 0: none.

  // flight: kFlightBytes at the beginning of the rank's region. rank: in the world.
  // trace: of the same region; null: none.
  FlightRecorder(std::byte* flight, Rank rank, std::string_view group_name,
                 wire::TraceRing* trace = nullptr);

  // at: when it was issued. started: whether it has been executing since then.
  Slot issued(const Issue& issue, TimePoint at = Clock::now(), bool started = false);
  // The same for a message to or from rank `root` of the world, which has reached `state`.
  Slot message(const Issue& issue, TimePoint at, wire::FlightState state);
  void started(Slot slot, TimePoint at = Clock::now());
  void finished(Slot slot, bool ok, TimePoint at = Clock::now());

 private:
  // Marks slots of messages.
  static constexpr Slot kMessage = Slot{1} << 63;

  wire::FlightEntry& entry(Slot slot) {
    return (slot & kMessage) == 0
               ? ring_->entries[(slot - 1) % wire::kFlightEntries]
               : ring_->message_entries[((slot & ~kMessage) - 1) % wire::kFlightMessages];
  }
  void begin(Slot slot, const Issue& issue, TimePoint at, wire::FlightState state);
  void change(Slot slot, wire::FlightState state, TimePoint at);
  bool is_wanted() const;  // The agent wants a trace.
  void trace_end(const wire::FlightRecord& record, bool is_message);

  wire::FlightRing* ring_;
  wire::TraceRing* trace_;
  std::uint32_t group_;
};

}  // namespace ddp::runtime
