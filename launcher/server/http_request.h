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
  bool is_here = false;       // The client is on this machine.
  bool is_secure = false;     // It came inside TLS.

  // A value of the query, with %XX decoded; nothing if it is not there.
  std::optional<std::string> value_of(std::string_view name) const;
};

// `head`: up to the empty line. Nothing if it is no such request.
std::optional<HttpRequest> parse_http_request(std::string_view head);

}  // namespace ddp::server
