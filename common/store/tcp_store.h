#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp {

// Client of a c10d TCPStore server (ours or PyTorch's) in the newest dialect. One connection; see Store for threads.
class TcpStore {
 public:
  // Retries refused and reset connections with back-off until `timeout`.
  static Result<std::unique_ptr<Store>> connect(const std::string& host, int port, Store::Timeout timeout);
};

}  // namespace ddp
