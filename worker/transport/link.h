#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/unique_fd.h"
#include "worker/transport/failure.h"

struct pollfd;

namespace ddp {

// The two connections to a rank on a neighbouring node: one carries data; the other carries nothing
// but the one frame that says why a peer aborts, so that no backlog of data delays it and a closed
// data connection can be explained.
//
// One thread at a time. Owns the sockets, which are stream sockets of any family and are made
// non-blocking here.
class Link {
 public:
  Link(UniqueFd data, UniqueFd control, Rank peer, int peer_node);

  Rank peer() const { return peer_; }
  int peer_node() const { return peer_node_; }

  // Moves up to `bytes` bytes and gives how many; 0 when the socket would block (bytes > 0), -1
  // after a failure, which failure() then describes.
  ssize_t send_some(const std::byte* data, std::size_t bytes);
  ssize_t receive_some(std::byte* data, std::size_t bytes);
  const Failure& failure() const { return *failure_; }

  // The cause that the peer gave for its abort, if it has come.
  Outcome peer_abort();
  // Tells the peer why, as far as that is possible without waiting, and closes both connections for
  // good.
  void close(const Failure& cause);

  // What poll() should watch: the control connection always, the data connection for what last
  // would have blocked since clear_wants(). Gives the number of entries written, at most 2.
  int poll_entries(pollfd* entries) const;
  // The control connection alone, for a rank that is in no operation. At most 1.
  int idle_poll_entries(pollfd* entries) const;
  bool wants_data() const { return wants_read_ || wants_write_; }
  void clear_wants() { wants_read_ = wants_write_ = false; }

 private:
  ssize_t fail(const std::string& how);
  void read_control();

  UniqueFd data_;
  UniqueFd control_;
  Rank peer_;
  int peer_node_;
  bool wants_read_ = false;
  bool wants_write_ = false;
  bool closed_ = false;
  bool control_ended_ = false;
  std::string control_bytes_;
  Outcome failure_;
};

}  // namespace ddp
