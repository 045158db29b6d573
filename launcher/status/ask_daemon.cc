#include "launcher/status/ask_daemon.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "launcher/flags/flag_values.h"
#include "launcher/hosting/daemon_page.h"

namespace ddp::status {
namespace {

constexpr int kDefaultPort = 29'400;
constexpr Duration kLimit{10'000};
constexpr const char* kIsItYours =
    "is a job running there, is that the port of its --rdzv-endpoint, and is it yours? Another "
    "user's job on this machine answers only with --any-user";

}  // namespace

Result<HostPort> parse_daemon(const std::string& text) {
  auto parsed = flags::parse_endpoint(text, kDefaultPort);
  if (!parsed) return exit_error(kExitInvalidValue, "{}: {}", text, parsed.error().message);
  return parsed;
}

Result<store::Socket> connect_daemon(const HostPort& endpoint, TimePoint deadline) {
  auto socket = store::Socket::connect(endpoint.host, endpoint.port, deadline);
  if (socket) return socket;
  return exit_error(kExitJoinTimeout, "nothing answers at {}: {}; {}",
                    host_and_port(endpoint.host, endpoint.port), socket.error().message,
                    kIsItYours);
}

std::string query_value(std::string_view text) {
  std::string value;
  for (const char c : text) value += fmt::format("%{:02x}", static_cast<unsigned char>(c));
  return value;
}

Result<std::string> ask_daemon(const HostPort& endpoint, std::string_view path) {
  const TimePoint deadline = Clock::now() + kLimit;
  const std::string name = host_and_port(endpoint.host, endpoint.port);
  auto socket = connect_daemon(endpoint, deadline);
  if (!socket) return socket.error();
  auto page = hosting::get_page(*socket, path, name, deadline);
  if (page && *page) return std::move(**page);
  if (!page && page.error().code == Errc::kPeerLost) {
    return exit_error(kExitJoinTimeout, "nothing answers at {}: {}; {}", name, page.error().message,
                      kIsItYours);
  }
  return exit_error(kExitPortInUse,
                    "what answers at {} is not a rendezvous: {}; name the port of --rdzv-endpoint",
                    name, page ? fmt::format("it has no page {}", path) : page.error().message);
}

}  // namespace ddp::status
