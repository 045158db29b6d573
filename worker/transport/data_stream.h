#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"

struct pollfd;

namespace ddp {

// The data part of a link: bytes to and from one rank on another node, in order and unchanged, by
// whatever engine carries them (SocketStream; UcxStream where UCX is built in).
//
// One thread at a time, not always the same one. An engine may leave bytes in the caller's memory
// until the network has taken them, so a piece is sent in calls with the same bytes: after a call
// that moved m of them, the next one begins m bytes further and ends where the last one ended,
// until all are moved. Until then the caller leaves the memory as it is, unless the stream fails or
// is closed. The same holds for the memory of receive_some().
class DataStream {
 public:
  virtual ~DataStream() = default;
  DataStream(const DataStream&) = delete;
  DataStream& operator=(const DataStream&) = delete;

  // Makes it ready for data, together with the peer, which does the same; before anything else.
  // Blocks, at most until the deadline. The message is the end of a sentence, as how().
  virtual Result<void> establish(TimePoint /*deadline*/) { return {}; }

  // Moves up to `bytes` bytes and gives how many; 0 when it would block (bytes > 0), which counts
  // as a wish to be woken until clear_wants(); -1 after a failure, which how() then describes.
  virtual ssize_t send_some(const std::byte* data, std::size_t bytes) = 0;
  virtual ssize_t receive_some(std::byte* data, std::size_t bytes) = 0;
  // What went wrong, as the end of a sentence: "it closed the connection". Empty before.
  const std::string& how() const { return how_; }

  // What poll() should watch for what would have blocked since clear_wants(). Gives the number of
  // entries written, at most kPollEntries; call it just before sleeping.
  static constexpr int kPollEntries = 1;
  virtual int poll_entries(pollfd* entries) = 0;
  bool wants_data() const { return wants_read_ || wants_write_; }
  void clear_wants() { wants_read_ = wants_write_ = false; }

  // For a rank that is in no operation: moves on what the engine still has to do for bytes that it
  // took, and gives what to watch for that. Never blocks.
  virtual int idle_poll_entries(pollfd* /*entries*/) { return 0; }

  // Ends it for good, without waiting for the peer; the peer finds the end. After it, no memory of
  // the caller is in use.
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

}  // namespace ddp
