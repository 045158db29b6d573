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

// Tagged messages between any two ranks of a group, independent of its collectives and in any
// order. A message matches the earliest receive with the same peer and tag; counts and types must
// agree.
//
// Inside a node a message goes through a ring that each ordered pair of ranks shares (made at the
// first message, in the sender's arena), or, if it is large and lies in the sender's arena, is read
// in place. Between nodes there is a TCP connection for each pair of ranks, made at first use.
//
// A send is done when the message is buffered (always for up to kEagerBytes) or when the receiver
// or the kernel has taken it. Messages that arrive before their receive are kept, up to
// Options::unexpected_limit; beyond that their sender must wait.
//
// Callers of send(), recv() and Work::wait() move messages, and so does the thread "ddp-p2p", which
// the first message starts. Thread safe. All ranks of a group must make it; groups that share a
// Segment must make theirs in the same order on all ranks.
class PointToPoint {
 public:
  // Users' tags are below this. Tags from here on belong to operations that are composed of
  // messages, which error messages name by OpOptions::tag.
  static constexpr std::uint64_t kInternalTags = std::uint64_t{1} << 32;
  static constexpr std::size_t kEagerBytes = 32u << 10;

  struct Options {
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // If OpOptions has none.
    // Called when a failure was found here (not by fail()) and the node's memory is marked. On any
    // thread that moves messages, without locks; not after close().
    std::function<void(const Failure&)> on_failure;
    std::size_t unexpected_limit = std::size_t{64} << 20;  // Bytes, for all peers together.
    // Records messages with users' tags, if set. Other messages belong to an operation, which is
    // recorded itself.
    std::optional<FlightRecorder> recorder;
    std::vector<Rank>
        world_ranks;  // By rank of the group, for the recorder; empty: the group is the world.
  };

  // Copies what it needs from the transport: topology, memory, arena. meeting.store may be null if
  // there is one node.
  static std::shared_ptr<PointToPoint> make(Transport& transport, Meeting meeting, Round round,
                                            Options options);
  virtual ~PointToPoint() = default;

  // `sequence` names the operation in error messages. `to` and `from` may be this rank. Throws
  // CollectiveError with the first cause after a failure, std::invalid_argument for a bad argument.
  virtual WorkPtr send(Buffer buffer, Rank to, std::uint64_t tag, OpOptions options,
                       std::uint64_t sequence) = 0;
  virtual WorkPtr recv(Buffer buffer, Rank from, std::uint64_t tag, OpOptions options,
                       std::uint64_t sequence) = 0;

  // Fails all messages that are not done, and every later call. Marks the node's memory and tells
  // connected peers. The first cause counts.
  virtual void fail(const Failure& cause) = 0;

  // Ends the thread. First delivers messages that are buffered here, for at most a few seconds;
  // then fails what is not done, here and on the other ranks. Messages in flight to this rank are
  // lost. The owner must call it before it destroys what on_failure uses.
  virtual void close() = 0;
};

}  // namespace ddp
