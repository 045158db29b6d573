#include "launcher/rendezvous/failure_order.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <utility>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kFailuresMax = 4'096;
// A killed process or a lost node closes its connections a little before its end is seen, and
// others may already have failed because of that.
constexpr Duration kSeenLate{200};
// No failure is older than this; a larger age comes from a faulty agent.
constexpr std::int64_t kMaxAgeMs = std::int64_t{100} * 365 * 24 * 3'600 * 1'000;

// Programs raise SIGABRT and SIGPIPE in themselves, often because of what others did, so these two
// do not count.
bool is_seen_late(const wire::Failure& failure) {
  if (failure.kind == "agent" || failure.kind == "lease") return true;
  return failure.signal != 0 && failure.signal != SIGABRT && failure.signal != SIGPIPE &&
         !failure.own_time;
}

bool happened_before(const wire::Failure& late, TimePoint when, const wire::Failure& known,
                     TimePoint known_when) {
  const Duration margin = is_seen_late(known) ? kSeenLate : Duration{0};
  if (late.node_id == known.node_id && late.time_ms > 0 && known.time_ms > 0)
    return late.time_ms < known.time_ms - margin.count();
  return when < known_when - margin;
}

}  // namespace

void FailureOrder::add(wire::Failure failure, TimePoint told) {
  const TimePoint when = told - Duration{std::clamp<std::int64_t>(failure.age_ms, 0, kMaxAgeMs)};
  std::size_t place = failures_.size();
  while (place > 0 && happened_before(failure, when, failures_[place - 1], when_[place - 1]))
    --place;
  const auto at = static_cast<std::ptrdiff_t>(place);
  failures_.insert(failures_.begin() + at, std::move(failure));
  when_.insert(when_.begin() + at, when);
  if (failures_.size() <= kFailuresMax) return;
  const auto consequence = std::find_if(failures_.rbegin(), failures_.rend(),
                                        [](const wire::Failure& one) { return one.secondary; });
  const auto victim =
      consequence == failures_.rend() ? failures_.end() - 1 : std::prev(consequence.base());
  when_.erase(when_.begin() + (victim - failures_.begin()));
  failures_.erase(victim);
}

void FailureOrder::forget(int group_rank) {
  for (std::size_t i = failures_.size(); i-- > 0;) {
    if (failures_[i].group_rank != group_rank) continue;
    failures_.erase(failures_.begin() + static_cast<std::ptrdiff_t>(i));
    when_.erase(when_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void FailureOrder::clear() {
  failures_.clear();
  when_.clear();
}

}  // namespace ddp::rendezvous
