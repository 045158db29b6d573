#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/ids.h"

namespace ddp {

// The worker's end of the socket to its agent (DDP_CONTROL_FD). Without that variable every call
// does nothing, so a program needs no second path for running alone. A failed write is ignored: the
// agent's death ends this process anyway.
//
// Owns the descriptor and one thread that reads orders. Any thread may call; nothing blocks.
class ControlChannel {
 public:
  struct Orders {
    std::function<void(const std::string& reason)> on_abort;  // On the channel's thread.
    std::function<void()> on_commit_request;                  // On the channel's thread.
  };

  // The channel of this process's environment; says hello with RANK and DDP_ROUND.
  static std::unique_ptr<ControlChannel> from_environment(Orders orders);
  virtual ~ControlChannel() = default;

  // At most ten messages a second leave; the others are dropped.
  virtual void progress(std::int64_t step, double loss, double samples_per_second) = 0;
  // Call before ending badly. secondary: the cause lies with another rank.
  virtual void error(const std::string& message, bool secondary) = 0;
};

}  // namespace ddp
