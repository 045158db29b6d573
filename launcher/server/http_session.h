#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/net/byte_stream.h"
#include "common/net/timer.h"
#include "launcher/server/http_request.h"

namespace ddp::server {

struct HttpPage {
  std::string content_type;
  std::string body;
  std::string headers{};  // Further lines, each ended by "\r\n".
};

HttpPage text_page(std::string body);

// Takes one HTTP/1.1 request, for people with a browser or curl, and for Prometheus. Then it sends
// one answer and closes the connection, or gives the connection away for an answer without an end.
// Only GET and HEAD: another method gets 405, and a request that is not HTTP 400. A request that is
// not answered in 10 s gets 408 or 504.
class HttpSession : public net::ByteStream::Handler,
                    public std::enable_shared_from_this<HttpSession> {
 public:
  // Answers the request by reply() or begin_stream(), at once or later.
  using Answer =
      std::function<void(const HttpRequest& request, const std::shared_ptr<HttpSession>& session)>;

  // `secure`: the stream is inside TLS. `on_end` is called when the connection is gone.
  HttpSession(std::shared_ptr<net::ByteStream> stream, bool secure, Answer answer,
              std::function<void()> on_end);

  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;

  // Only the first of these two calls counts. `status`: "200 OK".
  void reply(std::string_view status, const HttpPage& page);
  // Begins an answer that the caller writes to the stream; null if the request was answered. The
  // connection ends when the client closes it, or by the caller.
  std::shared_ptr<net::ByteStream> begin_stream(std::string_view content_type);
  std::string remote() const { return stream_->remote(); }

 private:
  void answer(std::string_view head);

  std::shared_ptr<net::ByteStream> stream_;
  bool secure_;
  Answer answer_;
  std::function<void()> on_end_;
  net::Timer limit_;
  std::string head_;
  bool with_body_ = true;
  bool is_asked_ = false;  // The request is complete.
  bool is_answered_ = false;
};

}  // namespace ddp::server
