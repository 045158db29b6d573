#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::store {

// A client's TCP connection. Calls block, but never beyond a deadline. One thread. After kPeerLost
// or kTimeout the position in the stream is unknown, except after can_read().
class Socket {
 public:
  // Tries every address of `host` in turn. kNotFound if the name does not resolve (the look-up has
  // the system's time limits, not ours), kPeerLost if nobody listens, kTimeout at the deadline.
  static Result<Socket> connect(const std::string& host, int port, TimePoint deadline);

  // `taken`, if given: whether the system took all bytes, so that the peer may have got them.
  Result<void> write_all(std::string_view bytes, TimePoint deadline, bool* taken = nullptr);
  Result<std::string> read_exactly(std::size_t count, TimePoint deadline);
  // What has come, at least one byte; kPeerLost at the end of the stream.
  Result<std::string> read_some(TimePoint deadline);
  // The peer sees the end of the stream; reading goes on.
  Result<void> end_writing();
  // Whether, as far as this side knows, the peer has neither closed nor sent unrequested bytes.
  bool is_quiet() const;
  // True when a byte (or the end of the stream) is there, false at the deadline.
  Result<bool> can_read(TimePoint deadline);

 private:
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}
  Result<void> fill(TimePoint deadline);

  UniqueFd fd_;
  std::string buffer_;
  std::size_t read_ = 0;  // Invariant: read_ <= buffer_.size().
};

}  // namespace ddp::store
