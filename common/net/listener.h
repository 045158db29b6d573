#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "common/base/result.h"

namespace ddp::net {

// A listening TCP socket on the thread of `io`. The sockets that it hands over have no options set:
// the receiver calls set_stream_options. Destroying it stops listening; connections live on.
class Listener {
 public:
  using AcceptCallback = std::function<void(asio::ip::tcp::socket)>;

  // `address` is numeric; empty means all addresses, IPv6 and IPv4 on one socket where the machine
  // has IPv6. Port 0: the system picks one. A port whose last owner has just gone is taken at once.
  //   kExists           the port is taken; the message names address, port and remedy
  //   kInvalidArgument  the address is not numeric or not of this machine, or the port is out of
  //   range kIo               the system refused otherwise
  static Result<std::unique_ptr<Listener>> open(asio::io_context& io, const std::string& address,
                                                int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Call once. Without free file descriptors it pauses for a moment instead of failing.
  void start(AcceptCallback on_accept);
  int port() const;
  // ADDRESS:PORT as bound.
  std::string endpoint() const;

 private:
  struct State;
  explicit Listener(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ddp::net
