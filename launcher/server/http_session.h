#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/net/byte_stream.h"
#include "common/net/timer.h"

namespace ddp::server {

struct HttpPage {
  std::string content_type;
  std::string body;
};

// Serves one HTTP/1.1 request and closes the connection. For people with curl and for Prometheus.
// Only GET and HEAD: another method gets 405, an unknown path 404, and a request that is not HTTP
// 400.
class HttpSession : public net::ByteStream::Handler {
 public:
  // Gives the page of a path (without its query), or nothing.
  using Pages = std::function<std::optional<HttpPage>(std::string_view path)>;

  // `on_end` is called when the connection is gone.
  HttpSession(std::shared_ptr<net::ByteStream> stream, Pages pages, std::function<void()> on_end);

  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;

 private:
  void answer(std::string_view request_line);
  void reply(std::string_view status, const HttpPage& page, bool with_body);

  std::shared_ptr<net::ByteStream> stream_;
  Pages pages_;
  std::function<void()> on_end_;
  net::Timer limit_;
  std::string head_;
};

}  // namespace ddp::server
