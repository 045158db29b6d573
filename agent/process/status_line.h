#pragma once

#include <memory>

#include <asio/io_context.hpp>

#include "agent/process/console.h"
#include "common/net/timer.h"
#include "common/terminal/status_text.h"
#include "common/wire/control_messages.h"

namespace ddp::agent {

// Keeps the status of the job at the bottom of a terminal. Does nothing if the console is not a
// terminal. Lives on the thread of `io`.
class StatusLine {
 public:
  StatusLine(asio::io_context& io, std::shared_ptr<Console> console);

  void begin_round(const terminal::RoundSize& round);
  void on_progress(int local_rank, const wire::Progress& progress);
  // Removes the status for good.
  void end();

 private:
  static constexpr Duration kPeriod{250};

  void show();

  std::shared_ptr<Console> console_;
  terminal::StatusText text_;
  net::Timer timer_;
};

}  // namespace ddp::agent
