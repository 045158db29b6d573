#include "launcher/rendezvous/node_clock.h"

#include <algorithm>

namespace ddp::rendezvous {
namespace {

// No monotonic clock shows more than a hundred years; a larger number comes from a faulty agent.
constexpr std::int64_t kMaxMs = std::int64_t{100} * 365 * 24 * 3'600 * 1'000;

}  // namespace

TimePoint NodeClock::sent_at(std::int64_t sent_ms, TimePoint heard) {
  if (sent_ms <= 0 || sent_ms > kMaxMs) return heard;
  const std::int64_t heard_ms =
      std::chrono::duration_cast<Duration>(heard.time_since_epoch()).count();
  const std::int64_t difference_ms = heard_ms - sent_ms;
  differences_ms_[count_++ % kMessages] = difference_ms;
  const auto known = static_cast<std::ptrdiff_t>(std::min(count_, kMessages));
  const std::int64_t least =
      *std::min_element(differences_ms_.begin(), differences_ms_.begin() + known);
  return heard - Duration{difference_ms - least};
}

}  // namespace ddp::rendezvous
