#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/unique_fd.h"
#include "worker/transport/data_stream.h"
#include "worker/transport/failure.h"

struct pollfd;

namespace ddp {

// What joins this rank to one on another node: a stream of data, by whatever engine, and a control
// connection, which carries nothing but the one frame that says why a peer aborts, so that no
// backlog of data delays it and the end of the stream can be explained.
//
// One thread at a time. Owns both; the control connection is a stream socket of any family and is
// made non-blocking here.
class Link {
 public:
  Link(std::unique_ptr<DataStream> data, UniqueFd control, Rank peer, int peer_node);
  // With a SocketStream over `data`.
  Link(UniqueFd data, UniqueFd control, Rank peer, int peer_node);

  Rank peer() const { return peer_; }
  int peer_node() const { return peer_node_; }

  // Of DataStream.
  Result<void> establish(TimePoint deadline) { return data_->establish(deadline); }
  // As of DataStream, which says what the caller may do with the memory meanwhile; after -1,
  // failure() describes the failure.
  ssize_t send_some(const std::byte* data, std::size_t bytes) {
    return moved(failure_ ? -1 : data_->send_some(data, bytes));
  }
  ssize_t receive_some(std::byte* data, std::size_t bytes) {
    return moved(failure_ ? -1 : data_->receive_some(data, bytes));
  }
  const Failure& failure() const { return *failure_; }

  // The cause that the peer gave for its abort, if it has come.
  Outcome peer_abort();
  // Tells the peer why, as far as that is possible without waiting, and closes both connections for
  // good.
  void close(const Failure& cause);

  // What poll() should watch: the control connection always, the stream for what last would have
  // blocked since clear_wants(). Gives the number of entries written, at most 2.
  int poll_entries(pollfd* entries) const;
  // The control connection alone, for a rank that is in no operation. At most 1.
  int idle_poll_entries(pollfd* entries) const;
  bool wants_data() const { return data_->wants_data(); }
  void clear_wants() { data_->clear_wants(); }

 private:
  ssize_t moved(ssize_t bytes) {
    if (bytes < 0 && !failure_) explain_end();
    return bytes;
  }
  void explain_end();
  void read_control();

  std::unique_ptr<DataStream> data_;
  UniqueFd control_;
  Rank peer_;
  int peer_node_;
  bool closed_ = false;
  bool control_ended_ = false;
  std::string control_bytes_;
  Outcome failure_;
};

}  // namespace ddp
