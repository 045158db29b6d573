#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddp::server {

// The head of an HTTP/1.1 request.
struct HttpRequest {
  std::string method;
  std::string target;  // As it came: path and query.
  std::string path;    // Without the query.
  std::string query;
  std::string authorization;  // The header's value; empty: none.
  std::string host;           // Likewise: as the client has called this daemon.
  bool is_here = false;       // The client is on this machine, and knows it.
  bool is_secure = false;     // It came inside TLS.

  // Whether it has called this daemon localhost or a loopback address, or not at all. A page of
  // others that a browser here has loaded can ask by a name of its own (DNS rebinding).
  bool names_this_machine() const;
  // A value of the query, with %XX and + decoded; nothing if it is not there.
  std::optional<std::string> value_of(std::string_view name) const;
};

// `head`: up to the empty line. Nothing if it is no such request.
std::optional<HttpRequest> parse_http_request(std::string_view head);

}  // namespace ddp::server
