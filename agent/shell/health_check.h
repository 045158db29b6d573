#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"

namespace ddp::agent {

// Answers HTTP requests of those who watch the node (TORCHELASTIC_HEALTH_CHECK_PORT) with status
// 200 and a JSON text, whatever is asked for. The answer comes from the event loop that supervises
// the workers: an agent that hangs does not give it, and one that waits at an exit barrier does.
// Lives on the thread of `io`.
class HealthCheck {
 public:
  // On all addresses of the machine. `status` gives the text. kInvalidArgument for what is no port,
  // kIo if it cannot be listened at; the message is for people and says that it goes on without.
  static Result<HealthCheck> listen(asio::io_context& io, const std::string& port,
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
