#pragma once

#include <string>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/net/timer.h"
#include "launcher/server/server.h"

namespace ddp::server {

// What happened between two readings of the store's figures, as one line without a newline.
std::string stats_line(const StoreFigures& before, const StoreFigures& now, Duration between);

// ddp-rendezvous --stats: prints a line on standard error every `interval` (0: none), and one with
// totals when it is destroyed. On the thread of `io`. The server must outlive it.
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
