#include "worker/transport/socket_stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "worker/transport/non_blocking.h"

namespace ddp::transport {

SocketStream::SocketStream(Connection connection, Duration cut_after)
    : connection_(std::move(connection)), cut_after_(cut_after) {
  make_non_blocking(connection_.fd());
}

ssize_t SocketStream::send_some(const std::byte* data, std::size_t bytes) {
  if (!how().empty()) return -1;
  const ssize_t sent = connection_.send({data, bytes});
  if (sent >= 0) return sent;
  if (!would_block(errno)) return fail(connection_.explain(errno));
  wants_write_ = true;
  return 0;
}

ssize_t SocketStream::receive_some(std::byte* data, std::size_t bytes) {
  if (!how().empty()) return -1;
  const ssize_t received = connection_.receive({data, bytes});
  if (received > 0) return received;
  if (received == 0) return fail("it closed the connection");
  if (!would_block(errno)) return fail(connection_.explain(errno));
  wants_read_ = true;
  return 0;
}

int SocketStream::poll_entries(pollfd* entries) {
  if (!wants_data()) return 0;
  // The next call to move data says so: the sleep that follows is short.
  if (connection_.is_cut(cut_after_)) (void)fail(connection_.explain(ETIMEDOUT));
  const int events = (wants_read_ ? POLLIN : 0) | (wants_write_ ? POLLOUT : 0);
  entries[0] = pollfd{connection_.fd(), static_cast<short>(events), 0};
  return 1;
}

void SocketStream::close() { connection_.shut_down(SHUT_RDWR); }

}  // namespace ddp::transport
