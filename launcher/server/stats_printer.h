#pragma once

#include <string>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/net/timer.h"
#include "launcher/server/server.h"

namespace ddp::server {

// What happened between two looks at the store, in one line without its end.
std::string stats_line(const StoreFigures& before, const StoreFigures& now, Duration between);

// ddp-rendezvous --stats: a line on standard error every `interval` (0: none), and one over all of
// the time when it is destroyed. On the thread of `io`; the server outlives it.
class StatsPrinter {
 public:
  StatsPrinter(asio::io_context& io, const Server& server, Duration interval);
  ~StatsPrinter();
  StatsPrinter(const StatsPrinter&) = delete;
  StatsPrinter& operator=(const StatsPrinter&) = delete;

 private:
  void print_later();

  const Server& server_;
  Duration interval_;
  net::Timer timer_;
  TimePoint began_;
  TimePoint looked_;
  StoreFigures last_;
};

}  // namespace ddp::server
