#include "launcher/ddp_run/http_get.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "common/store/socket.h"

namespace ddp::run {
namespace {

constexpr std::size_t kMaxHeadBytes = 16u << 10;
constexpr std::size_t kMaxBodyBytes = 256u << 20;

// Reads up to and including the empty line.
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

std::optional<std::size_t> content_length(std::string_view head) {
  std::string lower(head);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view kName = "\r\ncontent-length: ";
  const std::size_t at = lower.find(kName);
  if (at == std::string::npos) return std::nullopt;
  std::size_t length = 0;
  const char* begin = lower.data() + at + kName.size();
  const auto [end, error] = std::from_chars(begin, lower.data() + lower.size(), length);
  if (error != std::errc() || *end != '\r' || length > kMaxBodyBytes) return std::nullopt;
  return length;
}

Result<std::string> exchange(store::Socket& socket, std::string_view path, const std::string& name,
                             TimePoint deadline) {
  const auto sent = socket.write_all(
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", path, name),
      deadline);
  if (!sent) return sent.error();
  const auto head = read_head(socket, deadline);
  if (!head) return head.error();
  const std::string status = head->substr(0, head->find("\r\n"));
  if (status.find(" 200 ") == std::string::npos) {
    return make_error(Errc::kProtocol, "it answers {} to GET {}", status, path);
  }
  const auto length = content_length(*head);
  if (!length) return make_error(Errc::kProtocol, "it does not say how long its answer is");
  return socket.read_exactly(*length, deadline);
}

}  // namespace

Result<std::string> http_get(const HostPort& endpoint, std::string_view path,
                             std::chrono::milliseconds limit) {
  const TimePoint deadline = Clock::now() + limit;
  const std::string name = host_and_port(endpoint.host, endpoint.port);
  auto socket = store::Socket::connect(endpoint.host, endpoint.port, deadline);
  if (!socket) {
    return exit_error(kExitJoinTimeout,
                      "nothing answers at {}: {}; is a job running there, and is that the port of "
                      "its --rdzv-endpoint?",
                      name, socket.error().message);
  }
  auto body = exchange(*socket, path, name, deadline);
  if (body) return body;
  return exit_error(kExitPortInUse,
                    "what answers at {} is not a rendezvous: {}; name the port of --rdzv-endpoint",
                    name, body.error().message);
}

}  // namespace ddp::run
