#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/process/user_gate.h"
#include "worker/transport/connection.h"

// Blocking steps with a deadline, for setting up links. The sockets themselves are non-blocking.
namespace ddp::transport {

Result<UniqueFd> listen_anywhere();
Result<int> local_port(int fd);
// Accepts connections that wait at a listening socket, some at a time. Those of other users of this
// machine are cut, unless they have closed already: then nobody knows whose they were. `gate` is
// made when it is needed.
std::vector<UniqueFd> accept_some(int listener, std::optional<UserGate>& gate);
// `address` is numeric. A peer that refuses or cannot be reached is an error at once, a silent one
// at the deadline.
Result<UniqueFd> connect_socket(const std::string& address, int port, TimePoint deadline);
// The same in two steps, neither of which waits. Call the second once the socket is writable; it
// says whether the connection succeeded.
Result<UniqueFd> begin_connect(const std::string& address, int port);
Result<void> finish_connect(int fd, const std::string& address, int port);
Result<void> send_all(Connection& connection, std::span<const std::byte> bytes, TimePoint deadline);
Result<void> receive_all(Connection& connection, std::span<std::byte> bytes, TimePoint deadline);
// Control: a thread reads it all the time, whatever its rank does.
enum class Traffic { kData, kControl };
// Sends small messages without delay, and between nodes of one host keeps no more in flight than
// fits in the caches. Half a minute after the host of the other end has vanished, the connection
// ends; one for data only if nothing waits for an answer (Connection::is_cut() sees the rest).
void set_connection_options(int fd, Traffic traffic);

}  // namespace ddp::transport
