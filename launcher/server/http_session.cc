#include "launcher/server/http_session.h"

#include <utility>

#include <fmt/format.h>

namespace ddp::server {
namespace {

constexpr std::size_t kMaxHeadBytes = 8u << 10;
constexpr Duration kHeadLimit{10'000};

HttpPage text_page(std::string body) { return {"text/plain; charset=utf-8", std::move(body)}; }

}  // namespace

HttpSession::HttpSession(std::shared_ptr<net::ByteStream> stream, Pages pages,
                         std::function<void()> on_end)
    : stream_(std::move(stream)),
      pages_(std::move(pages)),
      on_end_(std::move(on_end)),
      limit_(stream_->io()) {
  limit_.after(kHeadLimit,
               [this] { reply("408 Request Timeout", text_page("no request\n"), true); });
}

void HttpSession::on_bytes(std::string_view bytes) {
  head_.append(bytes.substr(0, kMaxHeadBytes + 1));
  const std::size_t line_end = head_.find("\r\n");
  if (head_.find("\r\n\r\n") != std::string::npos) {
    return answer(std::string_view(head_).substr(0, line_end));
  }
  if (head_.size() > kMaxHeadBytes) {
    reply("431 Request Header Fields Too Large", text_page("the limit is 8 KiB\n"), true);
  }
}

void HttpSession::on_closed(const Error& /*why*/) {
  limit_.cancel();
  on_end_();
}

void HttpSession::answer(std::string_view request_line) {
  const std::size_t first = request_line.find(' ');
  const std::size_t second =
      first == std::string_view::npos ? first : request_line.find(' ', first + 1);
  if (second == std::string_view::npos || !request_line.substr(second + 1).starts_with("HTTP/1.")) {
    return reply("400 Bad Request", text_page("this is not an HTTP/1.1 request\n"), true);
  }
  const std::string_view method = request_line.substr(0, first);
  std::string_view path = request_line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  if (method != "GET" && method != "HEAD") {
    return reply("405 Method Not Allowed", text_page("only GET and HEAD are supported\n"), true);
  }
  const std::optional<HttpPage> page = pages_(path);
  if (!page) {
    return reply("404 Not Found", text_page("the pages are /status, /history and /metrics\n"),
                 method == "GET");
  }
  reply("200 OK", *page, method == "GET");
}

void HttpSession::reply(std::string_view status, const HttpPage& page, bool with_body) {
  limit_.cancel();
  stream_->send(fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "Connection: close\r\n\r\n{}",
      status, page.content_type, page.body.size(),
      with_body ? std::string_view(page.body) : std::string_view()));
  stream_->close_after_writes();
}

}  // namespace ddp::server
