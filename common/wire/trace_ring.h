#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/shared_entry.h"
#include "common/wire/shm_layout.h"

// What a rank did when, while somebody wants to see it. The rank writes spans into the end of its
// region of the node's shared memory, and its agent reads them, also after the rank has died. The
// worker's half is worker/runtime/trace.h.
namespace ddp::wire {

inline constexpr std::size_t kTraceSpans = 8192;
inline constexpr std::uint32_t kNoTraceGroup = ~0U;
inline constexpr std::string_view kMessagesLane = "messages";

// Texts end with a zero byte unless they fill their array. Times are nanoseconds of CLOCK_MONOTONIC
// on the rank's machine.
struct TraceSpan {
  std::uint64_t number = 0;  // Counts the spans of the rank, from 1.
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t issued_ns = 0;  // When an operation was issued; 0: it is none.
  std::int64_t index = -1;     // Of a step; of an operation within its group; -1: none.
  std::uint64_t bytes = 0;     // That an operation or a message moves.
  // As in the rank's flight recorder. kNoTraceGroup unless it is an operation or a message.
  std::uint32_t group = kNoTraceGroup;
  std::int32_t peer = -1;  // The root of an operation, a rank of its group; of a message, its peer.
  // The row: "step", "compute", "bucket 3". Spans of one row nest or follow one another. Empty: the
  // group's own row, for its operations. "messages" may overlap.
  char lane[32] = {};
  char name[32] = {};  // Without the index.
};
static_assert(sizeof(TraceSpan) == 128 - 8);

using TraceEntry = SharedEntry<TraceSpan>;

// If it is all zero, nothing has been traced.
struct TraceRing {
  std::atomic<std::uint32_t> on{0};     // The agent wants spans.
  std::atomic<std::uint64_t> spans{0};  // Begun so far. Span n is in entry (n - 1) % kTraceSpans.
  alignas(64) TraceEntry entries[kTraceSpans];
};
static_assert(sizeof(TraceRing) <= kTraceBytes);
inline TraceRing* trace_ring_of(std::byte* region) {
  return reinterpret_cast<TraceRing*>(region + kTraceOffset);
}

// Any thread of the rank. If kTraceSpans others come while it writes, it is dropped.
void put_span(TraceRing& ring, TraceSpan span);
// Sets a text, and cuts off what is too long.
void set_lane(TraceSpan& span, std::string_view text);
void set_name(TraceSpan& span, std::string_view text);

// Parts of the span.
std::string_view lane_of(const TraceSpan& span);
std::string_view name_of(const TraceSpan& span);

struct NewSpans {
  std::vector<TraceSpan> spans;  // In the order of their numbers.
  std::uint64_t lost = 0;        // Overwritten before they were read, or never finished.
};
// The spans after number `read`, at most `most`; moves `read` on. A span that is being written ends
// the list, unless `final`: then its writer will not finish it.
NewSpans take_spans(const TraceRing& ring, std::uint64_t& read, std::size_t most, bool final);

}  // namespace ddp::wire
