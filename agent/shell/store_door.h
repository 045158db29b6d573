#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/net/byte_stream.h"
#include "common/net/frame_connection.h"
#include "common/net/listener.h"
#include "common/net/stream_mux.h"
#include "common/net/timer.h"
#include "common/process/user_gate.h"

namespace ddp::agent {

// The workers' way to the store in a job with a token or TLS. PyTorch's clients can neither prove
// who they are nor encrypt. So the agent listens on a loopback port for them, and carries what they
// say over one connection to the daemon, with its own proof and TLS. Other users of this machine
// are cut, unless `credentials.any_user`. Lives on the thread of `io`.
//
// A worker that connects while there is no connection to the daemon waits for it. If the
// connection is lost, the workers' connections end, as if the daemon had closed them.
class StoreDoor {
 public:
  StoreDoor(asio::io_context& io, net::Credentials credentials);
  ~StoreDoor();
  StoreDoor(const StoreDoor&) = delete;
  StoreDoor& operator=(const StoreDoor&) = delete;

  // Leads to the daemon at this address from now on; connections to another one end. Returns the
  // port on kAddress, always the same one.
  Result<int> lead_to(const std::string& host, int port);

  static constexpr const char* kAddress = "127.0.0.1";

 private:
  void welcome(asio::ip::tcp::socket worker);
  void connect();
  void adopt(std::shared_ptr<net::FrameConnection> connection);
  void on_frame(const std::string& payload);
  void let_in();

  asio::io_context& io_;
  const net::Credentials credentials_;
  std::string host_;
  int port_ = 0;
  std::optional<UserGate> gate_;  // Without one, all users are let in.
  std::unique_ptr<net::Listener> listener_;
  std::vector<std::shared_ptr<net::ByteStream>> waiting_;  // Not read yet.
  std::unique_ptr<net::StreamMux> mux_;                    // While there is a connection.
  bool connecting_ = false;
  net::Timer retry_;
  // Reports of earlier connections and attempts are ignored.
  std::uint64_t generation_ = 0;
  // Guards callbacks that outlive this object.
  std::shared_ptr<StoreDoor*> self_;
};

}  // namespace ddp::agent
