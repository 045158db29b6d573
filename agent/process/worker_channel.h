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

// The agent's end of the socket to one worker (control_messages.h). A worker that never uses it,
// that writes nonsense or that never reads is no problem: nonsense closes the channel, orders that
// find no room wait, and those beyond kBacklogBytes are dropped; so are descriptors that belong to
// no snapshot. Lives on the thread of `io`.
class WorkerChannel : public std::enable_shared_from_this<WorkerChannel> {
 public:
  using Callback = std::function<void(const wire::WorkerMessage&)>;

  static constexpr std::size_t kBacklogBytes = 256 * 1024;

  // `socket` is one end of a socketpair.
  static std::shared_ptr<WorkerChannel> start(asio::io_context& io, UniqueFd socket,
                                              Callback on_message);

  void send(const wire::WorkerOrder& order);
  // With a copy of `descriptor` on the first byte. Never dropped while the channel is open, so at
  // most one a round.
  void send(const wire::NewRound& order, int descriptor);
  // Those that came with the snapshot that on_message is being called for, the image first; fewer
  // than it names if they were lost on the way.
  std::vector<UniqueFd> take_descriptors() { return std::exchange(current_, {}); }
  // Reads what has been sent up to this moment; on_message is called from inside. Call when the
  // worker has ended.
  void drain();
  // No callback runs afterwards.
  void close();

 private:
  struct Unsent {
    std::string bytes;
    UniqueFd descriptor;   // Goes with the first byte, and is closed then.
    std::size_t sent = 0;  // Invariant: less than bytes.size().
  };

  WorkerChannel(asio::io_context& io, Callback on_message)
      : socket_(io), on_message_(std::move(on_message)) {}
  void wait();
  // False when nothing more is to be read at the moment.
  bool read_once();
  // False when the stream cannot be understood any more.
  bool take_frames();
  void push(Unsent order);
  // Sends until all is sent or the socket is full.
  void flush();
  // False when the socket is full or gone.
  bool send_once(Unsent& order);

  asio::posix::stream_descriptor socket_;
  Callback on_message_;
  wire::FrameDecoder decoder_;
  // Each descriptor belongs to the frame in which the read that brought it ended: a read goes no
  // further than the bytes with which one was sent, and those are of one frame.
  std::vector<UniqueFd> incoming_;  // Of the frame that is not complete yet.
  std::vector<UniqueFd> latest_;    // Came with the latest read.
  std::vector<UniqueFd> current_;   // Of the frame that on_message_ is being called for.
  std::deque<Unsent> unsent_;
  std::size_t unsent_bytes_ = 0;  // Invariant: what unsent_ has left to send.
  bool waiting_for_room_ = false;
};

}  // namespace ddp::agent
