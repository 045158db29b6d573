#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/net/byte_stream.h"
#include "common/net/tls.h"

namespace ddp::net {

// How a connecting side proves that it belongs to a job, and checks that the other side does.
struct Credentials {
  Secret token{};  // Empty: no proof is given or requested.
  std::string job_id{};
  std::shared_ptr<const TlsContext> tls{};  // Null: none.
  std::string tls_name{};                   // As TlsContext::client() takes it.
  // Whether a rendezvous of another user of this machine will do, if neither token nor TLS proves
  // that it is the job's.
  bool any_user = false;
};

// One rendezvous connection (PROTOCOL.md): frames out, frames in. Everything, callbacks included,
// happens on the one thread that runs `io`. The owner keeps a shared_ptr and must call close() or
// close_after_writes() at the end. If it only drops the pointer, the connection and its callbacks
// live on until the peer closes.
//
// How it ends: exactly one call of `on_closed`, unless close() came first, and never from inside
// send() or start().
//   kPeerLost   the peer closed or reset the connection, or stopped acknowledging (about 10 s)
//   kProtocol   the peer sent bytes that are not a frame
//   kIo         kMaxQueuedBytes wait to be sent (the peer does not read), the socket failed, or a
//               payload was larger than a frame may be
//   kAborted    close_after_writes() has done its work
class FrameConnection {
 public:
  using ConnectCallback = std::function<void(Result<std::shared_ptr<FrameConnection>>)>;
  using FrameCallback = std::function<void(std::string payload)>;
  using ClosedCallback = std::function<void(const Error& why)>;
  using DrainedCallback = std::function<void()>;

  static constexpr std::size_t kMaxQueuedBytes = 64u << 20;

  // Connects and exchanges preambles; calls back once, from the event loop, never from inside
  // connect(). `host` is a name or a numeric address without brackets. Tries each address of the
  // name once. Retrying is up to the caller.
  //   kPeerLost  nobody listens, the host is unreachable, or it closed without an answer
  //   kTimeout   no connection within `timeout`
  //   kProtocol  connected, but no rendezvous answers within `timeout`: another program's port; or
  //              one of another user of this machine does
  //   kNotFound  the name does not resolve
  //   permission_denied (std::errc)  one side could not prove to the other that it belongs to the
  //              job; asking again with the same credentials gives the same answer
  static void connect(asio::io_context& io, const std::string& host, int port,
                      const Credentials& credentials, std::chrono::milliseconds timeout,
                      ConnectCallback callback);

  // For the accepting side: takes over a stream whose preambles are exchanged. `received` is what
  // was read after the peer's preamble. The stream's former handler is not called again.
  static std::shared_ptr<FrameConnection> adopt(std::shared_ptr<ByteStream> stream,
                                                std::string_view received);

  // Starts reading. Call once. `on_frame` gets one frame per call, in order. A callback may call
  // any member of this object. on_drained: all queued frames are sent, after some had to wait.
  void start(FrameCallback on_frame, ClosedCallback on_closed, DrainedCallback on_drained = {});
  // Queues one frame. After the end of the connection it does nothing.
  void send(std::string_view payload);
  std::size_t queued_bytes() const { return stream_->queued_bytes(); }
  // From now on, the connection also ends if the peer's machine acknowledges nothing for this long
  // while something is on its way. A process that is stopped or slow does not matter: its kernel
  // acknowledges.
  void expect_acknowledgements(std::chrono::milliseconds within);
  // Sends what is queued, tells the peer that nothing follows, and closes when the peer has closed
  // or 2 s after it last took something. Incoming frames are dropped from here on.
  void close_after_writes();
  // Closes at once; no callback runs afterwards.
  void close();

  // Numeric, without port; IPv4 in dotted form even on an IPv6 socket.
  std::string remote_address() const;

  ~FrameConnection();
  FrameConnection(const FrameConnection&) = delete;
  FrameConnection& operator=(const FrameConnection&) = delete;

 private:
  class Inbox;
  explicit FrameConnection(std::shared_ptr<ByteStream> stream);

  std::shared_ptr<ByteStream> stream_;
  std::shared_ptr<Inbox> unstarted_;  // Until start(), which gives it to the stream.
  std::weak_ptr<Inbox> inbox_;
};

}  // namespace ddp::net
