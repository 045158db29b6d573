#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "common/base/result.h"

namespace ddp::net {

using Endpoints = std::vector<asio::ip::tcp::endpoint>;

// Asks the system for the addresses of a name, in a thread of its own. Lives on the thread of `io`.
//
// A name server that does not answer holds getaddrinfo() up for a minute, and nothing can interrupt
// it. asio::ip::tcp::resolver waits for it at the end of `io`, so that Ctrl-C would not end a
// program. This one leaves the thread alone with it.
class NameLookup {
 public:
  using Callback = std::function<void(Result<Endpoints>)>;

  explicit NameLookup(asio::io_context& io) : io_(io) {}
  ~NameLookup() { cancel(); }
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Calls back once, unless it is cancelled. The addresses are in the order in which to try them.
  // kNotFound, with the system's reason.
  void ask(const std::string& host, int port, Callback callback);
  void cancel();

 private:
  struct Question;
  struct State;
  asio::io_context& io_;
  std::shared_ptr<State> state_;
};

}  // namespace ddp::net
