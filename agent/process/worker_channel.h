#pragma once

#include <functional>
#include <memory>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"

namespace ddp::agent {

// The agent's end of the socket to one worker (control_messages.h). A worker that never uses it,
// that writes nonsense or that never reads is no problem: nonsense closes the channel, and orders
// that find no room are dropped. Lives on the thread of `io`.
class WorkerChannel : public std::enable_shared_from_this<WorkerChannel> {
 public:
  using Callback = std::function<void(const wire::WorkerMessage&)>;

  // `socket` is one end of a socketpair.
  static std::shared_ptr<WorkerChannel> start(asio::io_context& io, UniqueFd socket,
                                              Callback on_message);

  void send(const wire::WorkerOrder& order);
  // Reads what has been sent up to this moment; on_message is called from inside. Call when the
  // worker has ended.
  void drain();
  // No callback runs afterwards.
  void close();

 private:
  WorkerChannel(asio::io_context& io, Callback on_message)
      : socket_(io), on_message_(std::move(on_message)) {}
  void wait();
  // False when nothing more is to be read at the moment.
  bool read_once();

  asio::posix::stream_descriptor socket_;
  Callback on_message_;
  wire::FrameDecoder decoder_;
};

}  // namespace ddp::agent
