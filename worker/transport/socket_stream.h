#pragma once

#include <cstddef>

#include "common/base/unique_fd.h"
#include "worker/transport/data_stream.h"

namespace ddp::transport {

// Data over a connected stream socket of any family, which it owns and makes non-blocking. The
// kernel copies what it takes, so memory given to send_some() may change when the call returns.
class SocketStream : public DataStream {
 public:
  explicit SocketStream(UniqueFd socket);

  ssize_t send_some(const std::byte* data, std::size_t bytes) override;
  ssize_t receive_some(std::byte* data, std::size_t bytes) override;
  int poll_entries(pollfd* entries) override;
  void close() override;

 private:
  UniqueFd socket_;
};

}  // namespace ddp::transport
