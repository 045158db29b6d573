#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"

namespace ddp::node {

// How an agent ended.
struct AgentEnd {
  std::optional<config::AgentResult> result;  // Nothing if the agent was lost.
  std::string how;                            // "signal 9 (SIGKILL)", "exit status 70".
};

// One ddp-agent, a child of this process. It has a process group of its own, so that signals from a
// terminal reach ddp-run alone. Lives on the thread of `io`. Destroying the object neither ends the
// process nor waits for it.
class AgentProcess {
 public:
  using EndCallback = std::function<void(const AgentEnd&)>;

  // Starts the binary `program`. `on_end` comes once, from the event loop, when the process has
  // ended and is reaped; it may destroy this object. kNotFound or kIo if it cannot be started.
  // `tasks_fd`: JobPlan::tasks_fd. The agent can be told later that its coordinator has moved.
  static Result<std::unique_ptr<AgentProcess>> start(asio::io_context& io,
                                                     const std::string& program,
                                                     const config::JobSpec& spec,
                                                     EndCallback on_end, int tasks_fd = -1);

  // Only before on_end: until then the process id cannot be reused.
  void signal(int signal_number) const;
  // Tells the agent that the coordinator has moved to another address than in `spec`.
  void tell_coordinator(const std::string& host, int port) const;

 private:
  AgentProcess(asio::io_context& io, pid_t pid, UniqueFd pidfd, UniqueFd result_pipe,
               UniqueFd coordinator_pipe, EndCallback on_end);
  void wait_for_end();
  void read_result();
  bool drain_result();

  pid_t pid_;
  bool forwards_signals_ = false;
  asio::posix::stream_descriptor pidfd_;
  asio::posix::stream_descriptor result_pipe_;
  UniqueFd coordinator_pipe_;
  std::string result_text_;
  EndCallback on_end_;
  std::shared_ptr<void> alive_ = std::make_shared<char>();
};

// Where ddp-agent is.
std::string agent_program();

}  // namespace ddp::node
