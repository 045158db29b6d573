#include "agent/process/trace_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/monotonic_ns.h"
#include "common/wire/flight_ring.h"

namespace ddp::agent {
namespace {

// More than the rings of eight ranks hold. The oldest go first.
constexpr std::size_t kMostKnown = 65'536;

}  // namespace

TraceReader::TraceReader(std::string host, std::string clock)
    : host_(std::move(host)), clock_(std::move(clock)) {}

TraceReader::~TraceReader() { switch_to(false); }

void TraceReader::begin_round(const RoundMemory& memory, Round round, Rank first_rank) {
  memory_ = &memory;
  round_ = round;
  first_rank_ = first_rank;
  if (on_) map_rings();
}

void TraceReader::end_round() {
  if (on_) read_rings(true);
  rings_.clear();
  memory_ = nullptr;
}

void TraceReader::map_rings() {
  for (int local = 0; local < memory_->header().local_size; ++local) {
    RankRing rank{memory_->map(local, wire::kTraceOffset, wire::kTraceBytes),
                  memory_->map(local, 0, wire::kFlightBytes), first_rank_ + local};
    if (!rank.trace || !rank.flight) continue;
    reinterpret_cast<wire::TraceRing*>(rank.trace.bytes())->on.store(1);
    // What was traced for an earlier reader is old.
    rank.read = rank.ring().spans.load();
    rings_.push_back(std::move(rank));
  }
}

void TraceReader::switch_to(bool on) {
  if (std::exchange(on_, on) == on) return;
  if (on) {
    text_.forget_names();
    if (memory_ != nullptr) map_rings();
    return;
  }
  for (const RankRing& rank : rings_)
    reinterpret_cast<wire::TraceRing*>(rank.trace.bytes())->on.store(0);
  rings_.clear();
  known_.clear();
  lost_ = 0;
}

void TraceReader::read_rings(bool final) {
  for (RankRing& rank : rings_) {
    wire::NewSpans taken = wire::take_spans(rank.ring(), rank.read, wire::kTraceSpans, final);
    lost_ += taken.lost;
    fill_ = std::max(fill_, static_cast<double>(taken.spans.size() + taken.lost) /
                                static_cast<double>(wire::kTraceSpans));
    if (taken.spans.empty()) continue;
    const auto flight = wire::read_flight(rank.flight.bytes());
    for (const wire::TraceSpan& span : taken.spans) {
      const bool has_group = span.group != wire::kNoTraceGroup && flight;
      known_.push_back(
          {rank.rank, round_, has_group ? flight->group_name(span.group) : std::string(), span});
    }
  }
  while (known_.size() > kMostKnown) {
    known_.pop_front();
    ++lost_;
  }
}

void TraceReader::saved(Rank rank, const wire::SavedShare& share) {
  if (!on_) return;
  wire::TraceSpan span;
  span.end_ns = monotonic_ns(Clock::now());
  span.begin_ns = span.end_ns - static_cast<std::int64_t>(share.seconds * 1e9);
  span.index = share.step;
  wire::set_lane(span, "checkpoint-writer");
  wire::set_name(span, share.error.empty() ? "write" : "write, failed");
  known_.push_back({rank, share.round, {}, span});
}

wire::TraceEvents TraceReader::answer(TimePoint now, const wire::ReadTrace& question) {
  // Another coordinator's clock is another one, and an old guess is a bad one.
  expire(now);
  if (!on_ || question.clock != asked_by_) offset_ = {};
  asked_by_ = question.clock;
  if (question.answered_ns != 0) {
    offset_.exchange(question.answered_ns, question.received_ns, question.sent_ns,
                     monotonic_ns(now));
  }
  const bool is_same = !clock_.empty() && question.clock == clock_;
  const bool is_known = is_same || offset_.is_known();
  shift_ns_ = (is_same ? 0 : offset_.ahead()) - question.zero_ns;
  switch_to(true);
  until_ = now + kLease;
  if (question.names) text_.forget_names();
  read_rings(false);
  // Times mean nothing before the first exchange.
  if (!is_known) return {.more = true, .sent_ns = monotonic_ns(Clock::now())};
  return take_known();
}

void TraceReader::expire(TimePoint now) {
  if (on_ && now > until_) switch_to(false);
}

std::optional<wire::TraceEvents> TraceReader::rest(TimePoint now, bool final) {
  expire(now);
  if (!on_) return std::nullopt;
  read_rings(final);
  if (known_.empty() && lost_ == 0) return std::nullopt;
  return take_known();
}

wire::TraceEvents TraceReader::take_known() {
  wire::TraceEvents events;
  for (std::size_t left = kMostSpans; left > 0 && !known_.empty(); --left) {
    const KnownSpan& known = known_.front();
    text_.append(events.events, {known.rank, known.round, host_, known.group}, known.span,
                 shift_ns_);
    known_.pop_front();
  }
  events.lost = std::exchange(lost_, 0);
  events.more = !known_.empty();
  events.fill = std::min(std::exchange(fill_, 0), 1.0);
  events.sent_ns = monotonic_ns(Clock::now());
  return events;
}

}  // namespace ddp::agent
