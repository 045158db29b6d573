#pragma once

#include <string>

#include <fmt/format.h>

namespace ddp {

// HOST:PORT, with brackets around an IPv6 address.
inline std::string host_and_port(const std::string& host, int port) {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

// Whether a numeric address is a loopback address.
inline bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

}  // namespace ddp
