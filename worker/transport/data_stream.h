#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"

struct pollfd;

namespace ddp::transport {

// The data part of a link: bytes to and from one rank on another node, in order and unchanged, over
// whichever engine carries them (SocketStream; UcxStream where UCX is built in).
//
// One thread at a time, not always the same one. An engine may leave bytes in the caller's memory
// until the network has taken them. So repeat the call for the same piece until all of it has
// moved: after a call that moved m bytes, the next one begins m bytes further and has the same end.
// Do not change the memory before that, unless the stream fails or is closed. The same holds for
// the memory of receive_some().
class DataStream {
 public:
  virtual ~DataStream() = default;
  DataStream(const DataStream&) = delete;
  DataStream& operator=(const DataStream&) = delete;

  // Makes the stream ready for data. Both ends must call it, before anything else. Blocks, at most
  // until the deadline. An error's message is the end of a sentence, as in how().
  virtual Result<void> establish(TimePoint /*deadline*/) { return {}; }

  // Moves up to `bytes` bytes (bytes > 0) and returns how many. 0: it would block; poll_entries()
  // then waits for this direction, until clear_wants(). -1: it failed, and how() says why.
  virtual ssize_t send_some(const std::byte* data, std::size_t bytes) = 0;
  virtual ssize_t receive_some(std::byte* data, std::size_t bytes) = 0;
  // What went wrong, as the end of a sentence: "it closed the connection". Empty before a failure.
  const std::string& how() const { return how_; }

  // Writes what poll() should watch for the calls that would have blocked since clear_wants().
  // Returns the number of entries written, at most kPollEntries. Call it just before sleeping.
  static constexpr int kPollEntries = 1;
  virtual int poll_entries(pollfd* entries) = 0;
  bool wants_data() const { return wants_read_ || wants_write_; }
  void clear_wants() { wants_read_ = wants_write_ = false; }

  // For a rank that is in no operation: makes progress on bytes that the engine has already taken,
  // and writes what to watch for more of it. Never blocks.
  virtual int idle_poll_entries(pollfd* /*entries*/) { return 0; }

  // Ends the stream for good, without waiting for the peer, which sees the end. Afterwards the
  // stream uses no memory of the caller.
  virtual void close() = 0;

 protected:
  DataStream() = default;
  ssize_t fail(std::string how) {
    if (how_.empty()) how_ = std::move(how);
    return -1;
  }

  bool wants_read_ = false;
  bool wants_write_ = false;

 private:
  std::string how_;
};

}  // namespace ddp::transport
