#include "worker/runtime/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/clock.h"

namespace ddp::runtime {
namespace {

using wire::FlightEntry;
using wire::FlightRecord;
using wire::FlightState;

static_assert(sizeof(FlightRecorder::Slot) == sizeof(FlightRecord::number));

std::int64_t in_ns(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

template <std::size_t Size>
void copy_text(std::string_view text, char (&to)[Size]) {
  // Not memcpy: an empty text may have no data at all.
  std::copy_n(text.begin(), std::min(text.size(), Size), to);
}

constexpr std::size_t word_of(std::size_t offset) { return offset / sizeof(std::uint64_t); }

// Grants the right to write, unless somebody else is writing.
class Writing {
 public:
  explicit Writing(FlightEntry& entry) : entry_(entry) {
    version_ = entry_.version.load(std::memory_order_relaxed);
    granted_ = version_ % 2 == 0 && entry_.version.compare_exchange_strong(
                                        version_, version_ + 1, std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Writing() {
    if (granted_) entry_.version.store(version_ + 2, std::memory_order_release);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  bool granted() const { return granted_; }

 private:
  FlightEntry& entry_;
  std::uint32_t version_;
  bool granted_;
};

}  // namespace

FlightRecorder::FlightRecorder(std::byte* flight, Rank rank, std::string_view group_name)
    : ring_(reinterpret_cast<wire::FlightRing*>(flight)) {
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
  const Writing writing(target);
  if (!writing.granted()) return;
  FlightRecord record;
  record.number = slot & ~kMessage;
  record.sequence = issue.sequence;
  record.count = issue.count;
  record.issued_ns = in_ns(at);
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
  std::uint64_t words[wire::kFlightWords];
  std::memcpy(words, &record, sizeof(record));
  for (std::size_t i = 0; i < wire::kFlightWords; ++i) {
    target.words[i].store(words[i], std::memory_order_relaxed);
  }
}

void FlightRecorder::started(Slot slot, TimePoint at) { change(slot, FlightState::kStarted, at); }

void FlightRecorder::finished(Slot slot, bool ok, TimePoint at) {
  change(slot, ok ? FlightState::kDone : FlightState::kFailed, at);
}

void FlightRecorder::change(Slot slot, FlightState state, TimePoint at) {
  if (slot == 0) return;
  FlightEntry& target = entry(slot);
  const Writing writing(target);
  // Another operation may have taken the entry.
  constexpr std::size_t kNumber = word_of(offsetof(FlightRecord, number));
  if (!writing.granted() ||
      target.words[kNumber].load(std::memory_order_relaxed) != (slot & ~kMessage)) {
    return;
  }
  constexpr std::size_t kStarted = word_of(offsetof(FlightRecord, started_ns));
  constexpr std::size_t kEnded = word_of(offsetof(FlightRecord, ended_ns));
  target.words[state == FlightState::kStarted ? kStarted : kEnded].store(
      static_cast<std::uint64_t>(in_ns(at)), std::memory_order_relaxed);
  // Group and state share a word, in this order.
  constexpr std::size_t kState = word_of(offsetof(FlightRecord, group));
  static_assert(offsetof(FlightRecord, state) == offsetof(FlightRecord, group) + 4);
  const std::uint64_t group = target.words[kState].load(std::memory_order_relaxed) & 0xFFFFFFFF;
  target.words[kState].store(group | static_cast<std::uint64_t>(state) << 32,
                             std::memory_order_relaxed);
}

}  // namespace ddp::runtime
