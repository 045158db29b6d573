#include "worker/transport/link.h"

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "worker/transport/control_links.h"
#include "worker/transport/futex.h"

namespace ddp::transport {

Link::Link(std::unique_ptr<DataStream> data, Connection control, Rank peer, int peer_node)
    : data_(std::move(data)), control_(std::move(control)), peer_(peer), peer_node_(peer_node) {}

Outcome await_verdict(const Segment& segment) {
  const TimePoint limit = Clock::now() + ControlLinks::kVerdictTime;
  while (!segment.aborted() && Clock::now() < limit) {
    futex_wait(segment.abort_word(), 0, limit - Clock::now());
  }
  if (!segment.aborted()) return {};
  return segment.abort_cause();
}

void Link::explain_end() {
  if (segment_ != nullptr) failure_ = await_verdict(*segment_);
  if (failure_) return;
  failure_ =
      Failure{Errc::kPeerLost, peer_,
              fmt::format("rank {} on node {} is gone: {}", peer_, peer_node_, data_->how())};
}

void Link::close(const Failure& cause) {
  if (closed_) return;
  closed_ = true;
  data_->close();
  if (!failure_) failure_ = cause;
}

}  // namespace ddp::transport
