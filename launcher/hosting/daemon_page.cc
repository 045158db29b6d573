#include "launcher/hosting/daemon_page.h"

#include <cctype>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/base/parse_number.h"

namespace ddp::hosting {
namespace {

constexpr Duration kAnswerLimit{1'000};
constexpr std::size_t kMaxHeadBytes = 16u << 10;
constexpr std::size_t kMaxBodyBytes = 256u << 20;

std::optional<std::size_t> content_length(std::string_view head) {
  const auto length =
      parse_whole_number<std::size_t>(http_field(head, "content-length"), std::size_t{0});
  return length && *length <= kMaxBodyBytes ? length : std::nullopt;
}

// kProtocol if what comes is not the head of an HTTP answer.
Result<std::string> read_head(store::Socket& socket, TimePoint deadline) {
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    // Another protocol may never send an empty line, so the first letters decide.
    constexpr std::string_view kStart = "HTTP/1.";
    if (!kStart.starts_with(head.substr(0, kStart.size())) || head.size() > kMaxHeadBytes) {
      return make_error(Errc::kProtocol, "it does not speak HTTP");
    }
    auto byte = socket.read_exactly(1, deadline);
    if (!byte) return byte.error();
    head += *byte;
  }
  return head;
}

}  // namespace

Result<std::string> send_get(store::Socket& socket, std::string_view target, std::string_view name,
                             std::string_view authorization, TimePoint deadline) {
  std::string text =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", target, name);
  if (!authorization.empty()) text += fmt::format("Authorization: {}\r\n", authorization);
  const auto sent = socket.write_all(text + "\r\n", deadline);
  if (!sent) return sent.error();
  return read_head(socket, deadline);
}

Result<std::string> read_body(store::Socket& socket, std::string_view head, TimePoint deadline) {
  const auto length = content_length(head);
  if (!length) return make_error(Errc::kProtocol, "it does not say how long its answer is");
  return socket.read_exactly(*length, deadline);
}

int http_status(std::string_view head) {
  // "HTTP/1.1 200 OK"
  const std::size_t space = head.find(' ');
  if (space == std::string_view::npos) return 0;
  return parse_whole_number<int>(head.substr(space + 1, 3), 0).value_or(0);
}

std::string http_field(std::string_view head, std::string_view name) {
  std::string lower(head);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::size_t at = lower.find(fmt::format("\r\n{}: ", name));
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 4;
  return std::string(head.substr(begin, head.find('\r', begin) - begin));
}

Result<std::optional<std::string>> get_page(store::Socket& socket, std::string_view path,
                                            std::string_view name, TimePoint deadline) {
  const auto head = send_get(socket, path, name, "", deadline);
  if (!head) return head.error();
  const int status = http_status(*head);
  if (status == 404) return std::optional<std::string>();
  if (status != 200) return make_error(Errc::kProtocol, "it answers {} to GET {}", status, path);
  auto body = read_body(socket, *head, deadline);
  if (!body) return body.error();
  return std::optional<std::string>(std::move(*body));
}

Result<std::optional<std::string>> ask_daemon(std::string_view path, const std::string& host,
                                              int port) {
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  auto socket = store::Socket::connect(host, port, deadline);
  if (!socket) return socket.error();
  auto page = get_page(*socket, path, host_and_port(host, port), deadline);
  if (!page && page.error().code == Errc::kProtocol)
    return make_error(Errc::kProtocol, "another program uses port {}", port);
  while (page && *page && (*page)->ends_with('\n')) (*page)->pop_back();
  return page;
}

}  // namespace ddp::hosting
