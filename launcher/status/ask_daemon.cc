#include "launcher/status/ask_daemon.h"

#include <optional>
#include <utility>

#include "common/auth/crypto_library.h"
#include "common/auth/http_digest.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "launcher/flags/flag_values.h"
#include "launcher/hosting/daemon_page.h"

namespace ddp::status {
namespace {

constexpr int kDefaultPort = 29'400;
constexpr int kRedirects = 3;
constexpr const char* kIsItYours =
    "is a job running there, is that the port of its --rdzv-endpoint, and is it yours? Another "
    "user's job on this machine answers only with --any-user";

std::string name_of(const HostPort& endpoint) {
  return host_and_port(endpoint.host, endpoint.port);
}

Error no_answer(const HostPort& endpoint, const Error& error) {
  if (error.code == Errc::kNotFound) {
    return exit_error(kExitJoinTimeout, "{}; check the spelling, or give its address",
                      error.message);
  }
  return exit_error(kExitJoinTimeout, "nothing answers at {}: {}; {}", name_of(endpoint),
                    error.message, kIsItYours);
}

Result<Answer> ask_once(const Daemon& daemon, const std::string& target,
                        const std::string& authorization) {
  const HostPort& endpoint = daemon.endpoint;
  const TimePoint deadline = Clock::now() + daemon.limit;
  auto socket = store::Socket::connect(endpoint.host, endpoint.port, deadline);
  if (!socket) return no_answer(endpoint, socket.error());
  auto head = hosting::send_get(*socket, target, name_of(endpoint), authorization, deadline);
  if (!head && head.error().code == Errc::kPeerLost) return no_answer(endpoint, head.error());
  if (!head) return another_program(endpoint, head.error().message);
  const int status = hosting::http_status(*head);
  return Answer{std::move(*socket), std::move(*head), status, daemon.limit};
}

Result<Answer> ask_with_token(const Daemon& daemon, const std::string& target) {
  auto answer = ask_once(daemon, target, "");
  if (!answer || answer->status != 401) return answer;
  if (daemon.token.empty()) {
    return exit_error(kExitRefused,
                      "this job has a token; give it with --rdzv-token-file FILE or in "
                      "DDP_RDZV_TOKEN");
  }
  if (const auto loaded = auth::CryptoLibrary::load(); !loaded) return loaded.error();
  const std::string challenge = hosting::http_field(answer->head, "www-authenticate");
  answer =
      ask_once(daemon, target, auth::http_digest_answer(challenge, daemon.token, "GET", target));
  if (answer && answer->status == 401)
    return exit_error(kExitRefused, "this job has another token");
  return answer;
}

// Where a daemon that stands by says that the coordinator is.
std::optional<HostPort> place_of(const std::string& location) {
  constexpr std::string_view kScheme = "http://";
  if (!location.starts_with(kScheme)) return std::nullopt;
  const std::size_t end = location.find('/', kScheme.size());
  auto place =
      parse_host_port(location.substr(kScheme.size(), end - kScheme.size()), 1, std::nullopt);
  if (!place) return std::nullopt;
  return std::move(*place);
}

}  // namespace

Error another_program(const HostPort& endpoint, std::string_view why) {
  return exit_error(kExitPortInUse,
                    "what answers at {} is not a rendezvous: {}; name the port of --rdzv-endpoint",
                    name_of(endpoint), why);
}

Result<HostPort> parse_daemon(const std::string& text) {
  auto parsed = flags::parse_endpoint(text, kDefaultPort);
  if (!parsed) return exit_error(kExitInvalidValue, "{}: {}", text, parsed.error().message);
  return parsed;
}

std::string query_value(std::string_view text) {
  std::string value;
  for (const char c : text) value += fmt::format("%{:02x}", static_cast<unsigned char>(c));
  return value;
}

Result<Answer> ask(const Daemon& daemon, const std::string& target) {
  Daemon next = daemon;
  auto answer = ask_with_token(next, target);
  for (int i = 0; i < kRedirects && answer && answer->status == 307; ++i) {
    auto place = place_of(hosting::http_field(answer->head, "location"));
    if (!place) break;
    next.endpoint = std::move(*place);
    answer = ask_with_token(next, target);
  }
  return answer;
}

Result<std::string> body_of(Answer& answer) {
  auto body = hosting::read_body(answer.socket, answer.head, Clock::now() + answer.limit);
  if (body) return body;
  return exit_error(kExitJoinTimeout, "the rendezvous broke off: {}", body.error().message);
}

Result<std::string> ask_page(const Daemon& daemon, const std::string& target) {
  auto answer = ask(daemon, target);
  if (!answer) return answer.error();
  if (answer->status == 200) return body_of(*answer);
  return another_program(daemon.endpoint, fmt::format("it has no page {}", target));
}

}  // namespace ddp::status
