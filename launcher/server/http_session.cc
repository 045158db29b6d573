#include "launcher/server/http_session.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/host_port.h"

namespace ddp::server {
namespace {

constexpr std::size_t kMaxHeadBytes = 8u << 10;
constexpr Duration kLimit{10'000};

}  // namespace

HttpPage text_page(std::string body) { return {"text/plain; charset=utf-8", std::move(body)}; }

HttpSession::HttpSession(std::shared_ptr<net::ByteStream> stream, bool secure, Answer answer,
                         std::function<void()> on_end)
    : stream_(std::move(stream)),
      secure_(secure),
      answer_(std::move(answer)),
      on_end_(std::move(on_end)),
      limit_(stream_->io()) {
  limit_.after(kLimit, [this] {
    if (is_asked_) return reply("504 Gateway Timeout", text_page("the node did not answer\n"));
    reply("408 Request Timeout", text_page("no request\n"));
  });
}

void HttpSession::on_bytes(std::string_view bytes) {
  if (is_asked_) return;
  head_.append(bytes.substr(0, kMaxHeadBytes + 1));
  const std::size_t end = head_.find("\r\n\r\n");
  if (end != std::string::npos) return answer(std::string_view(head_).substr(0, end));
  if (head_.size() > kMaxHeadBytes)
    reply("431 Request Header Fields Too Large", text_page("the limit is 8 KiB\n"));
}

void HttpSession::on_closed(const Error& /*why*/) {
  limit_.cancel();
  is_answered_ = true;
  on_end_();
}

void HttpSession::answer(std::string_view head) {
  is_asked_ = true;
  auto request = parse_http_request(head);
  if (!request) return reply("400 Bad Request", text_page("this is not an HTTP/1.1 request\n"));
  with_body_ = request->method != "HEAD";
  if (with_body_ && request->method != "GET")
    return reply("405 Method Not Allowed", text_page("only GET and HEAD are supported\n"));
  request->is_secure = secure_;
  request->is_here = is_loopback(stream_->remote_address()) && request->names_this_machine();
  answer_(*request, shared_from_this());
}

void HttpSession::reply(std::string_view status, const HttpPage& page) {
  if (std::exchange(is_answered_, true)) return;
  limit_.cancel();
  stream_->send(fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n{}Connection: close\r\n\r\n{}",
      status, page.content_type, page.body.size(), page.headers,
      with_body_ ? std::string_view(page.body) : std::string_view()));
  stream_->close_after_writes();
}

std::shared_ptr<net::ByteStream> HttpSession::begin_stream(std::string_view content_type) {
  if (std::exchange(is_answered_, true)) return nullptr;
  limit_.cancel();
  stream_->send(fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
      content_type));
  if (with_body_) return stream_;
  stream_->close_after_writes();
  return nullptr;
}

}  // namespace ddp::server
