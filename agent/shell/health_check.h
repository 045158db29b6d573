#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"

namespace ddp::agent {

// Answers HTTP requests of programs that watch the node (TORCHELASTIC_HEALTH_CHECK_PORT). The
// answer to every request is status 200 and a JSON text. It comes from the event loop that
// supervises the workers, so an agent that hangs does not answer, and one that waits at an exit
// barrier does. Lives on the thread of `io`.
class HealthCheck {
 public:
  // Listens on all addresses of the machine. `status` returns the text. Connections of other users
  // of this machine are cut, unless `any_user`. kInvalidArgument if `port`
  // is not a port, kIo if it cannot listen there. The message also says that ddp-run goes on
  // without health checks.
  static Result<HealthCheck> listen(asio::io_context& io, const std::string& port, bool any_user,
                                    std::function<std::string()> status);
  HealthCheck(HealthCheck&&) noexcept;
  HealthCheck& operator=(HealthCheck&&) noexcept;
  ~HealthCheck();

  int port() const;

 private:
  struct State;
  explicit HealthCheck(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ddp::agent
