#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/transport/connection.h"
#include "worker/transport/data_stream.h"
#include "worker/transport/failure.h"
#include "worker/transport/segment.h"

struct pollfd;

namespace ddp::transport {

// For a rank whose connection has ended: the cause of the round's end, if it comes within
// ControlLinks::kVerdictTime. A peer that ends its streams on purpose says why, but its message may
// arrive a little later.
Outcome await_verdict(const Segment& segment);

// Connects this rank to one on another node: a data stream over any engine, and a control
// connection, which the Watch takes over.
//
// One thread at a time.
class Link {
 public:
  Link(std::unique_ptr<DataStream> data, Connection control, Rank peer, int peer_node);

  Rank peer() const { return peer_; }
  int peer_node() const { return peer_node_; }

  // See DataStream.
  Result<void> establish(TimePoint deadline) { return data_->establish(deadline); }
  // As in DataStream, which says what the caller may do with the memory meanwhile. After -1,
  // failure() describes the failure.
  ssize_t send_some(const std::byte* data, std::size_t bytes) {
    return moved(failure_ ? -1 : data_->send_some(data, bytes));
  }
  ssize_t receive_some(std::byte* data, std::size_t bytes) {
    return moved(failure_ ? -1 : data_->receive_some(data, bytes));
  }
  const Failure& failure() const { return *failure_; }

  // Hands over the control connection; once.
  Connection take_control() { return std::move(control_); }
  // Names the segment in which an abort's cause appears; that cause explains the end of the stream.
  // It must outlive the link.
  void explain_by(const Segment& segment) { segment_ = &segment; }
  // Closes the stream for good; failure() is the cause from then on.
  void close(const Failure& cause);

  // Both write what poll() should watch, as in DataStream, and return the number of entries
  // written, at most DataStream::kPollEntries.
  int poll_entries(pollfd* entries) const { return closed_ ? 0 : data_->poll_entries(entries); }
  int idle_poll_entries(pollfd* entries) const {
    return closed_ ? 0 : data_->idle_poll_entries(entries);
  }
  bool wants_data() const { return data_->wants_data(); }
  void clear_wants() { data_->clear_wants(); }

 private:
  ssize_t moved(ssize_t bytes) {
    if (bytes < 0 && !failure_) explain_end();
    return bytes;
  }
  void explain_end();

  std::unique_ptr<DataStream> data_;
  Connection control_;
  Rank peer_;
  int peer_node_;
  const Segment* segment_ = nullptr;
  bool closed_ = false;
  Outcome failure_;
};

// The links of a rank's lane, by node: null for its own node, and for all if it has no lane.
struct LaneLinks {
  std::vector<std::unique_ptr<Link>> by_node;
  // Makes those that a round does not begin with, until the deadline. Collective. Null if none is
  // missing.
  std::function<Outcome(std::vector<std::unique_ptr<Link>>& by_node, TimePoint deadline)> make_rest;
};

}  // namespace ddp::transport
