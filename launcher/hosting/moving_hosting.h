#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "launcher/server/server.h"

namespace ddp::hosting {

// How long the other nodes may take to learn that this one leaves.
inline constexpr std::chrono::milliseconds kLeaveLimit{5'000};

// This ddp-run's part in coordinating a job whose coordinator may be on any node, and move. While
// it is here, the rendezvous daemon runs in this process. Everything happens on the thread of the
// event loop.
class MovingHosting {
 public:
  // All are called from the event loop and must not destroy this object.
  struct Events {
    // Where the coordinator is. Called again whenever that changes.
    std::function<void(const std::string& host, int port)> coordinator;
    // The job is over, and this ddp-run was its coordinator.
    std::function<void(const wire::Finish& finish)> job_finished;
    // This node cannot take part. Gives the exit status and a line for people. No other event
    // follows.
    std::function<void(int exit_code, const std::string& why)> failed;
    std::function<void(const std::string& text)> notice;
  };

  virtual ~MovingHosting() = default;

  virtual void start() = 0;
  // The daemon; null while another node coordinates.
  virtual server::Server* server() const = 0;
  // Whether the job goes on if this node leaves now.
  virtual bool outlives_this_node() const = 0;
  // This node's part is over; the others go on without it. Calls back within a few seconds.
  virtual void end(std::function<void()> done) = 0;
};

}  // namespace ddp::hosting
