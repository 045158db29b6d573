#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp {

// Client of a c10d TCPStore server (ours or PyTorch's) in the newest dialect. One connection; see
// Store for threads. Keys get the leading "/" that PyTorch's clients give them, so that both see
// the same keys. Keys are at most 8 KiB and values 8 MiB, the limits of PyTorch's server; beyond is
// kInvalidArgument and nothing is sent.
class TcpStore {
 public:
  // Retries names that do not resolve and refused or reset connections with back-off until
  // `timeout`, which is also the longest that any later call waits for the server's answer (the
  // wait of get() and wait() for keys has its own).
  //   kTimeout   no server within `timeout`; the message has the last reason
  //   kProtocol  the port belongs to something else
  static Result<std::unique_ptr<Store>> connect(const std::string& host, int port,
                                                Store::Timeout timeout);
};

}  // namespace ddp
