#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <asio/io_context.hpp>

#include "common/base/result.h"

namespace ddp::net {

// Bytes in both directions, in order: a socket (ByteStream), or one of many streams over a
// connection (StreamMux). Everything on the thread that runs io().
class Stream {
 public:
  // Receives bytes and events, always from the event loop. It may call any member of the stream,
  // and replace itself. The stream holds it until on_closed() or close().
  class Handler {
   public:
    virtual ~Handler() = default;
    // Bytes in their order. The view is valid until the call returns.
    virtual void on_bytes(std::string_view bytes) = 0;
    // The stream has ended. Called once, unless close() came first:
    //   kPeerLost  the peer closed or reset the connection, or stopped acknowledging
    //   kIo        more than the limit of the queue waits to be sent
    //   kAborted   close_after_writes() has done its work
    // or the error of the filter, if it does not accept bytes.
    virtual void on_closed(const Error& why) = 0;
    // The queue has become empty after a write had to wait.
    virtual void on_drained() {}
  };

  virtual ~Stream() = default;

  // The first call starts reading.
  virtual void set_handler(std::shared_ptr<Handler> handler) = 0;
  // Queues what is not taken at once. Does nothing after the end.
  virtual void send(std::string_view bytes) = 0;
  // Stops reading after the current on_bytes(). While paused, the end of the stream is not noticed.
  virtual void pause_reading() = 0;
  virtual void resume_reading() = 0;
  // Sends what is queued, tells the peer that nothing follows, and ends. Bytes that still come in
  // are dropped.
  virtual void close_after_writes() = 0;
  // Closes at once and releases the handler, which is not called again.
  virtual void close() = 0;
  virtual bool is_open() const = 0;
  virtual std::size_t queued_bytes() const = 0;
  // If more than this waits to be sent, the stream ends.
  virtual void limit_queue(std::size_t bytes) = 0;
  // Who is at the other end, for messages.
  virtual std::string remote() const = 0;
  virtual asio::io_context& io() = 0;
};

}  // namespace ddp::net
