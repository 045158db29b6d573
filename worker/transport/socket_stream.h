#pragma once

#include <cstddef>

#include "worker/transport/connection.h"
#include "worker/transport/data_stream.h"

namespace ddp::transport {

// Data over a connection itself, which it makes non-blocking. What it takes is copied, so memory
// given to send_some() may change when the call returns, except what it did not take of a guarded
// one.
class SocketStream : public DataStream {
 public:
  // Fails if Connection::is_cut(cut_after) while a thread waits for it.
  explicit SocketStream(Connection connection, Duration cut_after = Connection::kCutAfter);

  ssize_t send_some(const std::byte* data, std::size_t bytes) override;
  ssize_t receive_some(std::byte* data, std::size_t bytes) override;
  int poll_entries(pollfd* entries) override;
  void close() override;

 private:
  Connection connection_;
  const Duration cut_after_;
};

}  // namespace ddp::transport
