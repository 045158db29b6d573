#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "common/auth/handshake.h"
#include "common/net/byte_stream.h"
#include "common/net/timer.h"
#include "launcher/server/refusals.h"

namespace ddp::server {

// A connection whose client has a token, until both sides have proved that they know it, or until
// it is closed. On the thread of the stream.
class AuthSession : public net::ByteStream::Handler {
 public:
  // All are called from the event loop.
  struct Events {
    // The handshake has succeeded, and the stream needs another handler. `rest` are the bytes after
    // the handshake.
    std::function<void(const std::string& job_id, std::string_view rest)> admitted;
    // The handshake has failed. The stream closes by itself, and ended() follows.
    std::function<void(RefusalReason why)> refused;
    std::function<void()> ended;
  };

  AuthSession(std::shared_ptr<net::ByteStream> stream, const Secret& token, Events events);

  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;

 private:
  void refuse(RefusalReason why);

  std::shared_ptr<net::ByteStream> stream_;
  auth::ServerHandshake handshake_;
  Events events_;
  net::Timer limit_;
};

}  // namespace ddp::server
