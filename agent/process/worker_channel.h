#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"

namespace ddp::agent {

// The agent's end of the socket to one worker (control_messages.h). A worker need not use it, and
// cannot harm the agent: malformed messages close the channel, orders wait if the socket is full,
// orders beyond kBacklogBytes are dropped, and so are descriptors that belong to no snapshot. Lives
// on the thread of `io`.
class WorkerChannel : public std::enable_shared_from_this<WorkerChannel> {
 public:
  using Callback = std::function<void(const wire::WorkerMessage&)>;

  static constexpr std::size_t kBacklogBytes = 256 * 1024;

  // `socket` is one end of a socketpair.
  static std::shared_ptr<WorkerChannel> start(asio::io_context& io, UniqueFd socket,
                                              Callback on_message);

  void send(const wire::WorkerOrder& order);
  // Sends a copy of `descriptor` with the first byte. Never dropped while the channel is open, so
  // call it at most once per round.
  void send(const wire::NewRound& order, int descriptor);
  // The descriptors of the snapshot for which on_message is being called, its memory first. There
  // are fewer than the message names if some were lost on the way.
  std::vector<UniqueFd> take_descriptors() { return std::exchange(current_, {}); }
  // Reads what has been sent up to this moment; on_message is called from inside. Call when the
  // worker has ended.
  void drain();
  // No callback runs afterwards.
  void close();

 private:
  struct Unsent {
    std::string bytes;
    UniqueFd descriptor;   // Sent with the first byte, and then closed.
    std::size_t sent = 0;  // Invariant: less than bytes.size().
  };

  WorkerChannel(asio::io_context& io, Callback on_message)
      : socket_(io), on_message_(std::move(on_message)) {}
  void wait();
  // False if there is nothing more to read for now.
  bool read_once();
  // False if the stream is malformed.
  bool take_frames();
  void push(Unsent order);
  // Sends until all is sent or the socket is full.
  void flush();
  // False if the socket is full or gone.
  bool send_once(Unsent& order);

  asio::posix::stream_descriptor socket_;
  Callback on_message_;
  wire::FrameDecoder decoder_;
  // Each descriptor belongs to the frame in which the read that brought it ended: a read does not
  // go beyond the bytes with which a descriptor was sent, and those belong to one frame.
  std::vector<UniqueFd> incoming_;  // Of the frame that is not complete yet.
  std::vector<UniqueFd> latest_;    // Those that came with the latest read.
  std::vector<UniqueFd> current_;   // Of the frame for which on_message_ is being called.
  std::deque<Unsent> unsent_;
  std::size_t unsent_bytes_ = 0;  // Invariant: what unsent_ has left to send.
  bool waiting_for_room_ = false;
};

}  // namespace ddp::agent
