#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/unique_fd.h"
#include "worker/runtime/flight_recorder.h"
#include "worker/runtime/mailbox.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/message.h"
#include "worker/runtime/peer_links.h"
#include "worker/runtime/peer_stream.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/idle.h"
#include "worker/transport/transport.h"

namespace ddp::runtime {

struct PostOfficeOptions {
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
// PostOfficeOptions::unexpected_limit; beyond that their sender must wait.
//
// Callers of send(), recv() and Work::wait() move everybody's messages; if none waits, the thread
// "ddp-p2p" does, which the first message starts. Thread safe. All ranks of a group must make it;
// groups that share a Segment must make theirs in the same order on all ranks.
class PostOffice final : public std::enable_shared_from_this<PostOffice> {
 public:
  // Copies what it needs from the transport: topology, memory, arena. meeting.store may be null if
  // there is one node.
  PostOffice(transport::Transport& transport, Meeting meeting, Round round,
             PostOfficeOptions options);
  ~PostOffice();

  // `sequence` names the operation in error messages. `to` and `from` may be this rank. Throws
  // CollectiveError with the first cause after a failure, std::invalid_argument for a bad argument.
  WorkPtr send(Buffer buffer, Rank to, std::uint64_t tag, OpOptions options,
               std::uint64_t sequence);
  WorkPtr recv(Buffer buffer, Rank from, std::uint64_t tag, OpOptions options,
               std::uint64_t sequence);
  // From whichever rank sends a message with the tag first: MessageWork::source, once it is done.
  std::shared_ptr<MessageWork> recv_any(Buffer buffer, std::uint64_t tag, OpOptions options,
                                        std::uint64_t sequence);

  // While one lives, this thread calls no listeners of messages: it holds a lock of their owner,
  // which they may need. "ddp-p2p" calls them instead.
  class Silence {
   public:
    explicit Silence(const PostOffice& office);
    ~Silence();
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;
  };

  // Fails all messages that are not done, and every later call. Marks the node's memory and tells
  // connected peers. The first cause counts.
  void fail(const Failure& cause);

  // Ends the thread. First delivers messages that are buffered here, for at most a few seconds;
  // then fails what is not done, here and on the other ranks. Messages in flight to this rank are
  // lost. The owner must call it before it destroys what on_failure uses.
  void close();

  // Moves messages until the work is done.
  void wait(MessageWork& work);

  // Whether the calling thread is this one's "ddp-p2p".
  bool is_own_thread() const;

 private:
  struct Peer {
    Peer(PostOffice& room, Rank self, Rank number)
        : rank(number), outbox(room), inbox(room, self, number) {}
    PeerStream* stream() const {
      return node ? static_cast<PeerStream*>(node.get()) : socket.get();
    }
    bool busy() const { return !outbox.empty() || inbox.wanted(); }

    Rank rank;
    std::unique_ptr<PeerRings> node;     // To a rank of this node.
    std::unique_ptr<PeerSocket> socket;  // To another node, once connected.
    Outbox outbox;
    Inbox inbox;
    bool active = false;   // In active_.
    TimePoint ended_at{};  // When the stream was seen to have ended.
  };
  using Lock = std::unique_lock<std::mutex>;
  friend class Inbox;  // The mailboxes use what follows, and the numbers of bytes below.
  friend class Outbox;

  // Some bytes of the work have moved, but others must wait. Any number of times. Needs mutex_, as
  // do the following.
  void begin(MessageWork& work);
  void complete(MessageWork& work);
  // Receives from any rank.
  bool awaits_any() const { return !any_source_.empty(); }
  // The first of them with the tag, which gets the rank's message; null if there is none.
  MessageWork* take_any(std::uint64_t tag, Rank from);
  // The first failure counts: afterwards nothing moves, and the mailboxes are empty.
  void break_down(Failure failure);
  bool alive() const { return !failure_; }

  std::shared_ptr<MessageWork> issue(MessageWork::Kind kind, Buffer buffer, Rank rank,
                                     std::uint64_t tag, OpOptions& options, std::uint64_t sequence);
  WorkPtr issued(Lock& lock, std::shared_ptr<MessageWork> work, bool synchronous);
  // Records in the flight recorder that a user's message was issued, and its state.
  std::uint64_t record(MessageWork::Kind kind, const Buffer& buffer, Rank peer, std::uint64_t tag,
                       std::uint64_t sequence, std::string_view text, TimePoint at,
                       wire::FlightState state);
  Peer& peer(Rank rank);
  void activate(Peer& peer);
  void retire(Peer& peer);  // If nothing is left to move.
  bool busy() const { return !pending_.empty() || !active_.empty(); }
  void settle(const Failure& first);
  void wake_sleepers();
  // Wakes the thread if there is something to move and nobody else moves it.
  void want_thread();
  void wake_thread();
  // Whether this thread may call listeners.
  bool tells() const;
  // Releases mutex_, then tells the owner of a failure, and the listeners of works that are done.
  void unlock(Lock& lock);

  // Moving (post_office_moving.cc).
  bool step(bool eager);
  bool connect();
  bool move(Peer& peer);
  bool pull_all();
  void check_stream(Peer& peer);
  // For a rank of this node that has left: fails if a message with it is not done.
  void check_departed(Peer& peer);
  void check_deadlines();
  std::string status(const MessageWork& work);
  // Moves messages until the work is done. Without a work: until nothing is left, until `limit` if
  // there is one, or else until a waiter takes over. Releases the lock in between.
  void drive(Lock& lock, const MessageWork* until, TimePoint limit);
  void sleep(transport::Idle& idle, const MessageWork* until);
  std::chrono::nanoseconds sleep_limit(bool polls) const;
  void collect_poll_entries(std::vector<pollfd>& entries);
  void run_thread();
  void await_need(Lock& lock);

  const transport::Topology topology_;
  const std::shared_ptr<transport::Segment> segment_;
  const std::shared_ptr<transport::Arena> arena_;
  const bool spin_;
  const std::uint32_t generation_;
  const std::chrono::milliseconds timeout_;
  const std::vector<Rank> world_ranks_;
  const std::size_t limit_bytes_;  // Of unexpected and of undelivered messages.
  const UniqueFd wake_fd_;         // Wakes a thread that polls.

  std::mutex announce_mutex_;  // Held while on_failure_ runs.
  std::function<void(const Failure&)> on_failure_;

  std::mutex mutex_;                   // Guards what follows.
  std::size_t unexpected_bytes_ = 0;   // Messages that wait for a receive.
  std::size_t undelivered_bytes_ = 0;  // Sends that are done, but not sent yet.
  std::optional<FlightRecorder> recorder_;
  std::list<std::shared_ptr<MessageWork>> pending_;
  std::deque<MessageWork*> any_source_;  // Receives from any rank.
  // Done; their listeners have not been told. Empty while mutex_ is free, except for what a Silence
  // leaves.
  std::vector<std::shared_ptr<MessageWork>> untold_;
  std::vector<std::unique_ptr<Peer>> peers_;  // By rank; null until used.
  std::vector<Peer*> active_;                 // Peers with something to move.
  std::optional<PeerLinks> links_;            // If the group has several nodes.
  std::vector<PeerLinks::Connected> connected_;
  TimePoint next_deadline_ = TimePoint::max();  // No work has an earlier one.
  std::optional<Failure> failure_;
  std::optional<Failure> announce_;  // What on_failure_ must still be told.
  unsigned steps_ = 0;
  int waiters_ = 0;         // Threads in wait().
  int sleeping_ = 0;        // Threads in sleep().
  bool completed_ = false;  // A work has completed since sleepers were last woken.
  bool stopping_ = false;
  std::uint64_t issued_ = 0;        // Receives, and sends that were not done at once.
  bool prompt_ = true;              // Wake the thread for each operation.
  bool parked_ = false;             // The thread sleeps until it is woken.
  std::condition_variable wanted_;  // Wakes the thread.
  std::thread thread_;
};

}  // namespace ddp::runtime
