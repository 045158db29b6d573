#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/data_streams.h"
#include "tests/support/inproc.h"
#include "worker/transport/socket_stream.h"
#include "worker/transport/transport.h"

// Worlds of threads whose links use streams made by the test, to count the bytes on the wire or to
// hold them back.
namespace ddp::test {

// Counts the bytes that it sends.
class CountedStream : public transport::SocketStream {
 public:
  CountedStream(UniqueFd socket, std::atomic<std::size_t>& sent)
      : transport::SocketStream(std::move(socket)), sent_(sent) {}

  ssize_t send_some(const std::byte* data, std::size_t bytes) override {
    const ssize_t moved = transport::SocketStream::send_some(data, bytes);
    if (moved > 0) sent_ += static_cast<std::size_t>(moved);
    return moved;
  }

 private:
  std::atomic<std::size_t>& sent_;
};

// Receives so many bytes, and more only after release.
struct Dam {
  std::atomic<std::size_t> allowed{0};
  std::atomic<bool> reached{false};
  std::atomic<bool> released{false};
};

class HeldStream : public transport::SocketStream {
 public:
  HeldStream(UniqueFd socket, Dam& dam) : transport::SocketStream(std::move(socket)), dam_(dam) {}

  ssize_t receive_some(std::byte* data, std::size_t bytes) override {
    if (!dam_.released && received_ >= dam_.allowed) {
      dam_.reached = true;
      return 0;
    }
    const ssize_t moved = transport::SocketStream::receive_some(
        data, dam_.released ? bytes : std::min(bytes, dam_.allowed - received_));
    if (moved > 0) received_ += static_cast<std::size_t>(moved);
    return moved;
  }

 private:
  Dam& dam_;
  std::size_t received_ = 0;
};

}  // namespace ddp::test
