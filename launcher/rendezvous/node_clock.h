#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace ddp::rendezvous {

// When a node sent its messages, in the coordinator's time, so that failures on several nodes come
// into one order even if a message waits for a busy processor or in a queue. A pure value.
//
// Each message carries its sender's monotonic clock. The difference between the arrival and that
// number is the difference of the two clocks plus the message's delay. The delay is never negative,
// so the smallest difference of several messages is the best known one: the clock filter of NTP
// (RFC 5905, section 10). The error is the shortest delay among them. Only the latest messages
// count, because clocks drift: 16 heartbeats at 100 parts per million make less than 2 ms.
class NodeClock {
 public:
  // `sent_ms`: the node's monotonic clock in the message that arrived at `heard`; 0: it had none.
  // Returns when it was sent: at `heard` or before.
  TimePoint sent_at(std::int64_t sent_ms, TimePoint heard);

 private:
  static constexpr std::size_t kMessages = 16;

  std::array<std::int64_t, kMessages> differences_ms_{};  // A ring.
  std::size_t count_ = 0;                                 // Of all messages so far.
};

}  // namespace ddp::rendezvous
