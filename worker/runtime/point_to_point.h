#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/collectives/types.h"
#include "worker/runtime/flight_recorder.h"
#include "worker/runtime/node_links.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"
#include "worker/transport/transport.h"

namespace ddp {

// Tagged messages between any two ranks of a group, beside its collectives and in any order. A
// message meets the receive with the same peer and tag that was issued first; counts and types must
// agree.
//
// Inside a node a message goes through a ring that each ordered pair of ranks shares (made at the
// first message, in the sender's arena), or, if it is large and lies in the sender's arena, is read
// where it is. Between nodes there is a TCP connection for each pair of ranks, made at first use.
//
// A send is done when the message is buffered (up to kEagerBytes, always), or else when the
// receiver or the kernel has taken it. Messages that come before their receive are kept, up to
// Options::unexpected_limit; beyond it their sender has to wait.
//
// Messages move in whoever calls send(), recv() or Work::wait(), and in the thread "ddp-p2p", which
// the first message starts. Thread safe. All ranks of a group make it, in the same order among the
// groups that share a Segment.
class PointToPoint {
 public:
  // Tags of users are below; greater ones are for operations that are composed of messages. Error
  // messages name those by OpOptions::tag.
  static constexpr std::uint64_t kInternalTags = std::uint64_t{1} << 32;
  static constexpr std::size_t kEagerBytes = 32u << 10;

  struct Options {
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // Where OpOptions has none.
    // A failure was found here (not by fail()) and the node's memory is marked. On any thread that
    // moves messages, without locks; not after close().
    std::function<void(const Failure&)> on_failure;
    std::size_t unexpected_limit = std::size_t{64} << 20;  // Bytes, of all peers together.
    // Where messages with users' tags are recorded, if they are. Others belong to an operation that
    // is recorded itself.
    std::optional<FlightRecorder> recorder;
    std::vector<Rank> world_ranks;  // By rank of the group, for the recorder; empty: the same.
  };

  // Takes of the transport what it needs: place, memory, arena. meeting.store may be null if there
  // is one node.
  static std::shared_ptr<PointToPoint> make(Transport& transport, Meeting meeting, Round round,
                                            Options options);
  virtual ~PointToPoint() = default;

  // `sequence` names the operation in error messages. `to` and `from` may be this rank. Throws
  // CollectiveError with the first cause after a failure, std::invalid_argument for a bad argument.
  virtual WorkPtr send(Buffer buffer, Rank to, std::uint64_t tag, OpOptions options,
                       std::uint64_t sequence) = 0;
  virtual WorkPtr recv(Buffer buffer, Rank from, std::uint64_t tag, OpOptions options,
                       std::uint64_t sequence) = 0;

  // Fails all that is not done, and every later call. Marks the node's memory and tells the peers
  // that are connected. The first cause counts.
  virtual void fail(const Failure& cause) = 0;

  // Ends the thread. What is not done fails, here and on the other ranks; messages that are
  // buffered here are delivered first (for at most some seconds). The owner calls it before it
  // destroys what on_failure uses. Messages in flight to this rank are lost.
  virtual void close() = 0;
};

}  // namespace ddp
