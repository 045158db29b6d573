#include "common/wire/trace_ring.h"

#include <algorithm>

#include <string.h>

namespace ddp::wire {
namespace {

template <std::size_t Size>
void set_text(char (&to)[Size], std::string_view text) {
  std::fill(std::copy_n(text.begin(), std::min(text.size(), Size), to), to + Size, '\0');
}

}  // namespace

std::string_view lane_of(const TraceSpan& span) { return text_of(span.lane); }
std::string_view name_of(const TraceSpan& span) { return text_of(span.name); }

void put_span(TraceRing& ring, TraceSpan span) {
  span.number = ring.spans.fetch_add(1, std::memory_order_relaxed) + 1;
  TraceEntry& entry = ring.entries[(span.number - 1) % kTraceSpans];
  const TraceEntry::Writing writing(entry);
  if (writing.granted()) entry.put(span);
}

void set_lane(TraceSpan& span, std::string_view text) { set_text(span.lane, text); }
void set_name(TraceSpan& span, std::string_view text) { set_text(span.name, text); }

NewSpans take_spans(const TraceRing& ring, std::uint64_t& read, std::size_t most, bool final) {
  NewSpans taken;
  const std::uint64_t begun = ring.spans.load(std::memory_order_acquire);
  if (begun > read + kTraceSpans) {
    taken.lost = begun - kTraceSpans - read;
    read = begun - kTraceSpans;
  }
  while (read < begun && taken.spans.size() < most) {
    const auto span = ring.entries[read % kTraceSpans].read();
    const bool is_it = span && span->number == read + 1;
    const bool is_under_way = !span || span->number <= read;
    // It may also have been dropped, but that shows only later.
    const bool may_come = is_under_way && begun - read < kTraceSpans / 2;
    if (!is_it && may_come && !final) break;
    ++read;
    if (is_it) {
      taken.spans.push_back(*span);
    } else {
      ++taken.lost;
    }
  }
  return taken;
}

}  // namespace ddp::wire
