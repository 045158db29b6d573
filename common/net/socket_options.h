#pragma once

#include <chrono>
#include <string>

#include <asio/ip/tcp.hpp>

namespace ddp::net {

// How soon an accepted or connected stream notices that its peer's machine is gone.
struct StreamOptions {
  // Probes begin after this silence and repeat three times a third of it apart.
  std::chrono::seconds keepalive_idle{30};
  // The connection ends if sent data stays unacknowledged, or the peer's receive window stays
  // closed, for this long; 0: the system's limit. Do not set it for peers that may be stopped in a
  // debugger with an answer unread.
  std::chrono::milliseconds user_timeout{0};
  // What is lost is sent again every 200 ms, not after 200, 400, 800 ms and so on. For connections
  // with few bytes, which must notice soon that the network works again.
  bool retransmits_steadily = false;

  bool operator==(const StreamOptions&) const = default;
};

// No child inherits the descriptor: a listening socket kept by one would keep the port taken.
void set_close_on_exec(int fd);

// Sets close-on-exec, TCP_NODELAY, non-blocking mode and the options above. Errors are ignored: the
// next read shows what is wrong with the socket.
void set_stream_options(int fd, const StreamOptions& options);

// Numeric text; an IPv4 address mapped into IPv6 in its dotted form.
std::string address_text(const asio::ip::address& address);

}  // namespace ddp::net
