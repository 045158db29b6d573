#pragma once

#include <cstddef>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

// Blocking steps with a deadline, for setting links up. The sockets are non-blocking.
namespace ddp {

Result<UniqueFd> listen_anywhere();
Result<int> local_port(int fd);
// `address` is numeric. Refused and unreachable peers are an error at once, silent ones at the
// deadline.
Result<UniqueFd> connect_socket(const std::string& address, int port, TimePoint deadline);
// The same in two steps, neither of which waits: the second, once the socket can be written to,
// says whether it is connected.
Result<UniqueFd> begin_connect(const std::string& address, int port);
Result<void> finish_connect(int fd, const std::string& address, int port);
Result<void> send_all(int fd, const std::byte* data, std::size_t bytes, TimePoint deadline);
Result<void> receive_all(int fd, std::byte* data, std::size_t bytes, TimePoint deadline);
// No delay for small messages; a host that vanished is noticed within half a minute; between nodes
// of one host, no more under way than fits in the caches.
void set_connection_options(int fd);

}  // namespace ddp
