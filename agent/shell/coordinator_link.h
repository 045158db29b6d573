#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/net/frame_connection.h"
#include "common/net/timer.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// Of one attempt to connect to the daemon. Whoever needs the connection tries again.
inline constexpr std::chrono::milliseconds kAttemptLimit{5'000};

// The agent's connection to the coordinator: at most one at a time, opened and closed as AgentCore
// orders. Lives on the thread of `io`. Callbacks never come from inside a call.
//
// A ddp-run that stands by at the endpoint says where the coordinator is, as far as it knows. If
// nobody answers there, the endpoint is asked again: the coordinator may have been lost meanwhile.
class CoordinatorLink {
 public:
  struct Events {
    std::function<void()> on_connected;
    std::function<void(const std::string& why)> on_connect_failed;
    // Another attempt with the same credentials would fail, too.
    std::function<void(const std::string& why)> on_connect_refused;
    // The connection was lost. Not called after disconnect().
    std::function<void()> on_disconnected;
    std::function<void(const wire::CoordinatorMessage&)> on_message;
    // From now on attempts go to this address. May come from inside set_endpoint().
    std::function<void(const HostPort& at)> on_aimed;
  };

  CoordinatorLink(asio::io_context& io, HostPort endpoint, net::Credentials credentials,
                  Events events);
  ~CoordinatorLink();
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  void connect(Duration delay);
  // The coordinator is at this address from now on. A pending attempt or delay starts over at once,
  // and a connection to the old address counts as lost. Does nothing if the address is the same.
  void set_endpoint(const HostPort& endpoint);
  // Does nothing while there is no connection.
  void send(const wire::AgentMessage& message);
  // Closes after all messages were sent. No event follows.
  void disconnect();
  // Calls back when no connection is closing any more, at most a few seconds later.
  void when_closed(std::function<void()> callback);

  // The numeric address at which this node reaches the coordinator; empty while not connected.
  std::string remote_address() const;

 private:
  void attempt();
  void turn_to_the_other();
  void aim_at(const HostPort& to);
  void drop_connection();
  void adopt(std::shared_ptr<net::FrameConnection> connection);
  void on_frame(const std::string& payload);

  asio::io_context& io_;
  HostPort endpoint_;
  std::optional<HostPort> hint_;  // Where the coordinator is, as somebody there said.
  HostPort aim_;                  // The endpoint, or the hint.
  const net::Credentials credentials_;
  Events events_;
  net::Timer delay_;
  bool trying_ = false;  // An attempt or the delay before it is under way.
  // Reports of attempts and connections of older generations are ignored.
  std::uint64_t generation_ = 0;
  std::shared_ptr<net::FrameConnection> connection_;
  int closing_ = 0;  // How many connections are still sending their last messages.
  std::function<void()> closed_callback_;
  // Guards callbacks of connections that outlive this object.
  std::shared_ptr<CoordinatorLink*> self_;
};

}  // namespace ddp::agent
