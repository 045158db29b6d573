#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddp::agent {

// What another machine's clock shows, from messages that go there and back. A pure value.
//
// A message leaves here at `left` and arrives there at `arrived`; the answer leaves there at
// `answered` and is here at `back`, each by the clock of the place. Half of the way there and back
// is the best guess of each way, so the other clock is ahead by
//   ((arrived - left) + (answered - back)) / 2.
// The guess is wrong by at most half of the time under way, so the exchange with the shortest one
// counts: the on-wire protocol and the clock filter of NTP (RFC 5905, sections 8 and 10). Only the
// latest exchanges count, because clocks drift.
class ClockOffset {
 public:
  // All in nanoseconds.
  void exchange(std::int64_t left, std::int64_t arrived, std::int64_t answered, std::int64_t back);
  // How far the other clock is ahead.
  std::int64_t ahead() const { return ahead_; }
  bool is_known() const { return count_ > 0; }

 private:
  struct Exchange {
    std::int64_t under_way = 0;
    std::int64_t ahead = 0;
  };
  std::array<Exchange, 16> latest_{};  // A ring.
  std::size_t count_ = 0;              // Of all exchanges so far.
  std::int64_t ahead_ = 0;
};

}  // namespace ddp::agent
