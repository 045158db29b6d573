#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/runtime/message.h"
#include "worker/runtime/peer_stream.h"
#include "worker/transport/arena.h"
#include "worker/transport/failure.h"

namespace ddp::runtime {

// The messages to one peer, in order. One thread at a time.
class Outbox {
 public:
  explicit Outbox(PostOffice& room) : room_(room) {}

  // Sends a small message at once, if there is room and nothing is queued before it.
  bool send_now(const Buffer& buffer, std::uint64_t tag, PeerRings& stream);
  // Queues a send. A large payload in `arena` stays where it is (null: no arena that the peer can
  // read).
  void add(MessageWork& send, const transport::Arena* arena);
  // Moves what it can. node: the stream, if it leads to a rank of the same node; else null.
  bool push(PeerStream& stream, PeerRings* node);
  // Completes the last send, if it is small, by copying what is not sent yet.
  void keep_last();
  bool empty() const { return queue_.empty() && lent_.empty(); }
  bool mid_message() const { return !queue_.empty() && queue_.front().written > 0; }
  // Whether a send is not done yet.
  bool pending() const;
  // How far a send is, for error messages.
  std::string status(const MessageWork& send) const;
  void clear();

 private:
  struct Item {
    MessageHeader header;
    MessageWork* work = nullptr;  // Null once it is done.
    const std::byte* payload = nullptr;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> copy;
    std::size_t written = 0;  // Header included.
    bool has_ticket = false;
  };
  struct Lent {
    MessageWork* work;
    std::uint32_t ticket;
  };
  bool write(Item& item, PeerStream& stream);

  PostOffice& room_;
  std::deque<Item> queue_;
  std::vector<Lent> lent_;  // The peer reads these in place.
};

// The messages from one peer: receives that wait for a message and messages that wait for a
// receive. One thread at a time.
class Inbox {
 public:
  Inbox(PostOffice& room, Rank self, Rank peer) : room_(room), self_(self), peer_(peer) {}

  void post(MessageWork& recv);
  // Gives a receive from any rank the first message that fits. False if there is none.
  bool claim_any(MessageWork& recv);
  // Reads what has arrived; without `eager` only as far as receives wait for it.
  bool pull(PeerStream& stream, PeerRings* node, bool eager);
  // Delivers a send of this rank to itself.
  void deliver(MessageWork& send);
  // Whether a receive waits.
  bool pending() const { return !posted_.empty() || target_ != nullptr || !transfers_.empty(); }
  // The same, or a receive waits for any rank.
  bool wanted() const;
  // The next message has no room: pull() reads no more from the peer until its receive is posted.
  bool blocked() const { return item_ != nullptr && item_->storage == nullptr; }
  // Why a receive is not done, for error messages.
  std::string status(const MessageWork& recv) const;
  void clear();

 private:
  struct Item {
    MessageHeader header;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> storage;  // Null: direct, from this rank itself, or no room.
    MessageWork* local = nullptr;          // The send, if its buffer holds the payload.
    bool complete = false;
  };
  using Items = std::list<Item>;
  struct Transfer {  // Of a payload in the peer's arena.
    MessageWork* recv;
    MessageHeader header;
    std::size_t done = 0;
  };

  bool read_header(PeerStream& stream);
  bool read_payload(PeerStream& stream);
  bool transfer(PeerRings& node);
  // The receive that a message with this tag is for, no longer posted; null if there is none.
  MessageWork* take_posted(std::uint64_t tag);
  void begin_message();
  void end_message();
  void claim(MessageWork& recv, Items::iterator item);
  void start(MessageWork& recv, const MessageHeader& header);
  bool make_room(Item& item);
  bool agree(const MessageWork& recv, const MessageHeader& header);
  void erase(Items::iterator item);

  PostOffice& room_;
  Rank self_;
  Rank peer_;
  std::deque<MessageWork*> posted_;  // In order of issue.
  Items arrived_;                    // In order of arrival.
  std::deque<Transfer> transfers_;

  // The message that is being read: its header, or else its payload into target_ or item_.
  MessageHeader header_;
  std::size_t got_ = 0;
  std::size_t bytes_ = 0;
  MessageWork* target_ = nullptr;
  Item* item_ = nullptr;
};

}  // namespace ddp::runtime
