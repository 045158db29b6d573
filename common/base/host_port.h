#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp {

// Where a server listens.
struct HostPort {
  std::string host;  // Name or numeric address, without brackets.
  int port = 0;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// As people write it: node0:29400, or [fd00::1]:29400 for an IPv6 address.
std::string host_and_port(const std::string& host, int port);

// Whether a numeric address is a loopback address. False for a name: 127.example.com may be any
// machine.
bool is_loopback(const std::string& address);

// HOST:PORT, [V6]:PORT; with a `default_port` also HOST, [V6] and V6. The port is at least
// `least_port`. kInvalidArgument: the message says what is wrong; the caller adds the text, and
// what would be right.
Result<HostPort> parse_host_port(std::string_view text, int least_port,
                                 std::optional<int> default_port);

}  // namespace ddp
