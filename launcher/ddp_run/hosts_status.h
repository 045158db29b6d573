#pragma once

#include <string>

#include <asio/io_context.hpp>

#include "common/net/timer.h"
#include "common/terminal/status_text.h"
#include "launcher/hosts/output_writer.h"
#include "launcher/rendezvous/job_status.h"
#include "launcher/server/server.h"

namespace ddp::run {

// What the rendezvous knows of a job as the line at the bottom of the terminal of who has typed
// --hosts: what all nodes report while a round runs, what is waited for while none does. Pure.
class HostsStatusText {
 public:
  std::string text(TimePoint now, const rendezvous::JobStatus& job);

 private:
  Round round_ = kNoRound;  // Of which text_ is.
  terminal::StatusText text_;
};

// Keeps it there, from now to its end. Lives on the thread of `io`.
class HostsStatus {
 public:
  // Both outlive it.
  HostsStatus(asio::io_context& io, const server::Server& server, std::string job_id,
              hosts::OutputWriter& terminal);
  ~HostsStatus();
  HostsStatus(const HostsStatus&) = delete;
  HostsStatus& operator=(const HostsStatus&) = delete;

 private:
  static constexpr Duration kPeriod{250};

  void show();

  const server::Server& server_;
  std::string job_id_;
  hosts::OutputWriter& terminal_;
  HostsStatusText text_;
  net::Timer timer_;
};

}  // namespace ddp::run
