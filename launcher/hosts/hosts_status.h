#pragma once

#include <string>

#include <asio/io_context.hpp>

#include "common/net/timer.h"
#include "common/terminal/status_text.h"
#include "launcher/hosts/output_writer.h"
#include "launcher/rendezvous/job_status.h"
#include "launcher/server/server.h"

namespace ddp::hosts {

// The text of the status line with --hosts, from what the rendezvous knows of the job: what all
// nodes report while a round runs, and what the job waits for while none runs. Pure.
class HostsStatusText {
 public:
  std::string text(TimePoint now, const rendezvous::JobStatus& job);

 private:
  Round round_ = kNoRound;  // The round that text_ describes.
  terminal::StatusText text_;
};

// Shows that line at the bottom of the terminal for as long as the object lives. Lives on the
// thread of `io`.
class HostsStatus {
 public:
  // `server` and `terminal` must outlive the object.
  HostsStatus(asio::io_context& io, const server::Server& server, std::string job_id,
              OutputWriter& terminal);
  ~HostsStatus();
  HostsStatus(const HostsStatus&) = delete;
  HostsStatus& operator=(const HostsStatus&) = delete;

 private:
  static constexpr Duration kPeriod{250};

  void show();

  const server::Server& server_;
  std::string job_id_;
  OutputWriter& terminal_;
  HostsStatusText text_;
  net::Timer timer_;
};

}  // namespace ddp::hosts
