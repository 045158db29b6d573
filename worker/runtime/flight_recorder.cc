#include "worker/runtime/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/clock.h"
#include "common/base/monotonic_ns.h"
#include "worker/runtime/trace.h"

namespace ddp::runtime {
namespace {

using wire::FlightEntry;
using wire::FlightRecord;
using wire::FlightState;

static_assert(sizeof(FlightRecorder::Slot) == sizeof(FlightRecord::number));

template <std::size_t Size>
void copy_text(std::string_view text, char (&to)[Size]) {
  // Not memcpy: an empty text may have no data at all.
  std::copy_n(text.begin(), std::min(text.size(), Size), to);
}

constexpr std::size_t word_of(std::size_t offset) { return offset / sizeof(std::uint64_t); }

}  // namespace

FlightRecorder::FlightRecorder(std::byte* flight, Rank rank, std::string_view group_name,
                               wire::TraceRing* trace)
    : ring_(reinterpret_cast<wire::FlightRing*>(flight)), trace_(trace) {
  if (ring_->magic.load() != wire::kFlightMagic) {
    ring_->version = wire::kFlightVersion;
    ring_->rank = rank;
    ring_->pid = ::getpid();
    ring_->magic.store(wire::kFlightMagic, std::memory_order_release);
  }
  group_ = ring_->groups.fetch_add(1);
  if (group_ >= wire::kFlightGroups) return;
  wire::FlightGroup& group = ring_->names[group_];
  copy_text(group_name, group.name);
  group.named.store(1, std::memory_order_release);
}

FlightRecorder::Slot FlightRecorder::issued(const Issue& issue, TimePoint at, bool started) {
  const Slot slot = ring_->records.fetch_add(1, std::memory_order_relaxed) + 1;
  begin(slot, issue, at, started ? FlightState::kStarted : FlightState::kIssued);
  return slot;
}

FlightRecorder::Slot FlightRecorder::message(const Issue& issue, TimePoint at, FlightState state) {
  const Slot slot = (ring_->messages.fetch_add(1, std::memory_order_relaxed) + 1) | kMessage;
  begin(slot, issue, at, state);
  return slot;
}

void FlightRecorder::begin(Slot slot, const Issue& issue, TimePoint at, FlightState state) {
  FlightEntry& target = entry(slot);
  const FlightEntry::Writing writing(target);
  if (!writing.granted()) return;
  FlightRecord record;
  record.number = slot & ~kMessage;
  record.sequence = issue.sequence;
  record.count = issue.count;
  record.issued_ns = monotonic_ns(at);
  record.state = state;
  if (state != FlightState::kIssued) record.started_ns = record.issued_ns;
  if (state == FlightState::kDone || state == FlightState::kFailed) {
    record.ended_ns = record.issued_ns;
  }
  record.group = group_;
  record.root = issue.root;
  copy_text(issue.type, record.type);
  copy_text(issue.operation, record.operation);
  copy_text(issue.tag, record.tag);
  record.element_bytes = static_cast<std::uint32_t>(issue.element_bytes);
  record.message_tag = issue.message_tag;
  target.put(record);
  if (record.ended_ns != 0 && is_wanted()) trace_end(record, (slot & kMessage) != 0);
}

void FlightRecorder::started(Slot slot, TimePoint at) { change(slot, FlightState::kStarted, at); }

void FlightRecorder::finished(Slot slot, bool ok, TimePoint at) {
  change(slot, ok ? FlightState::kDone : FlightState::kFailed, at);
}

void FlightRecorder::change(Slot slot, FlightState state, TimePoint at) {
  if (slot == 0) return;
  FlightEntry& target = entry(slot);
  const FlightEntry::Writing writing(target);
  // Another operation may have taken the entry.
  constexpr std::size_t kNumber = word_of(offsetof(FlightRecord, number));
  if (!writing.granted() ||
      target.words[kNumber].load(std::memory_order_relaxed) != (slot & ~kMessage)) {
    return;
  }
  constexpr std::size_t kStarted = word_of(offsetof(FlightRecord, started_ns));
  constexpr std::size_t kEnded = word_of(offsetof(FlightRecord, ended_ns));
  target.words[state == FlightState::kStarted ? kStarted : kEnded].store(
      static_cast<std::uint64_t>(monotonic_ns(at)), std::memory_order_relaxed);
  // Group and state share a word, in this order.
  constexpr std::size_t kState = word_of(offsetof(FlightRecord, group));
  static_assert(offsetof(FlightRecord, state) == offsetof(FlightRecord, group) + 4);
  const std::uint64_t group = target.words[kState].load(std::memory_order_relaxed) & 0xFFFFFFFF;
  target.words[kState].store(group | static_cast<std::uint64_t>(state) << 32,
                             std::memory_order_relaxed);
  if (state != FlightState::kStarted && is_wanted())
    trace_end(target.get(), (slot & kMessage) != 0);
}

bool FlightRecorder::is_wanted() const {
  if (trace_ == nullptr) return false;
  const bool is_on = trace_->on.load(std::memory_order_relaxed) != 0;
  if (is_on) note_traced();
  return is_on;
}

void FlightRecorder::trace_end(const FlightRecord& record, bool is_message) {
  // What has failed before it began has taken no time.
  if (record.started_ns == 0 && !is_message) return;
  wire::TraceSpan span;
  span.begin_ns = record.started_ns != 0 ? record.started_ns : record.issued_ns;
  span.end_ns = record.ended_ns;
  span.issued_ns = record.issued_ns;
  span.index = static_cast<std::int64_t>(record.sequence);
  span.bytes = wire::bytes_of(record);
  span.group = record.group;
  span.peer = record.root;
  if (is_message) wire::set_lane(span, wire::kMessagesLane);
  wire::set_name(span, wire::operation_of(record));
  wire::put_span(*trace_, span);
}

}  // namespace ddp::runtime
