#include "launcher/hosting/daemon_page.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/store/socket.h"

namespace ddp::hosting {
namespace {

constexpr Duration kAnswerLimit{1'000};
constexpr std::size_t kMaxHead = 4'096;

// The number after "Content-Length: " in an answer's head.
std::size_t content_length(std::string_view head) {
  constexpr std::string_view kName = "Content-Length: ";
  const std::size_t at = head.find(kName);
  std::size_t length = 0;
  if (at != std::string_view::npos)
    std::from_chars(head.data() + at + kName.size(), head.data() + head.size(), length);
  return std::min(length, kMaxHead);
}

}  // namespace

Result<std::optional<std::string>> ask_daemon(const std::string& path, const std::string& host,
                                              int port) {
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  auto socket = store::Socket::connect(host, port, deadline);
  if (!socket) return socket.error();
  const auto sent = socket->write_all(
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, host_and_port(host, port)),
      deadline);
  if (!sent) return sent.error();
  std::string head;
  while (!head.ends_with("\r\n\r\n") && head.size() < kMaxHead) {
    auto next = socket->read_exactly(1, deadline);
    if (!next) return next.error();
    head += *next;
  }
  if (head.starts_with("HTTP/1.1 404 ")) return std::optional<std::string>();
  if (!head.starts_with("HTTP/1.1 200 "))
    return make_error(Errc::kProtocol, "another program uses port {}", port);
  auto body = socket->read_exactly(content_length(head), deadline);
  if (!body) return body.error();
  while (body->ends_with('\n')) body->pop_back();
  return std::optional<std::string>(std::move(*body));
}

}  // namespace ddp::hosting
