#include "launcher/trace/trace_client.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/auth/crypto_library.h"
#include "common/auth/http_digest.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/store/socket.h"
#include "launcher/hosting/daemon_page.h"
#include "launcher/status/ask_daemon.h"

namespace ddp::trace {
namespace {

constexpr Duration kLimit{10'000};
constexpr Duration kLook{200};
constexpr std::size_t kMaxRefusalBytes = 4'096;
constexpr std::size_t kEndBytes = 256;
constexpr int kRedirects = 3;

struct Answer {
  store::Socket socket;
  std::string head;
  bool has_status(std::string_view status) const {
    return std::string_view(head).substr(0, head.find('\r')).find(status) != std::string_view::npos;
  }
};

std::string target_of(const TraceRequest& request) {
  if (request.job_id.empty()) return "/trace";
  return "/trace?job=" + status::query_value(request.job_id);
}

Result<Answer> ask(const TraceRequest& request, const std::string& authorization) {
  const std::string name = host_and_port(request.endpoint.host, request.endpoint.port);
  const TimePoint deadline = Clock::now() + kLimit;
  auto socket = status::connect_daemon(request.endpoint, deadline);
  if (!socket) return socket.error();
  std::string text =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", target_of(request), name);
  if (!authorization.empty()) text += fmt::format("Authorization: {}\r\n", authorization);
  const auto sent = socket->write_all(text + "\r\n", deadline);
  auto head = sent ? hosting::read_http_head(*socket, deadline) : Result<std::string>(sent.error());
  if (!head) {
    return exit_error(kExitPortInUse, "what answers at {} is not a rendezvous: {}", name,
                      head.error().message);
  }
  return Answer{std::move(*socket), std::move(*head)};
}

// The first line of the daemon's words about why there is no trace.
Error refusal(Answer& answer) {
  std::string why;
  const TimePoint deadline = Clock::now() + kLimit;
  while (why.size() < kMaxRefusalBytes) {
    const auto more = answer.socket.read_some(deadline);
    if (!more) break;
    why += *more;
  }
  return exit_error(kExitInvalidValue, "{}", why.substr(0, why.find('\n')));
}

// HOST:PORT of an address.
std::string place_of(const std::string& location) {
  constexpr std::string_view kScheme = "http://";
  if (!location.starts_with(kScheme)) return {};
  return location.substr(kScheme.size(), location.find('/', kScheme.size()) - kScheme.size());
}

// Until events follow.
Result<Answer> begin(TraceRequest request, int redirects) {
  auto answer = ask(request, "");
  if (answer && answer->has_status(" 401 ") && !request.token.empty()) {
    if (const auto loaded = auth::CryptoLibrary::load(); !loaded) return loaded.error();
    const std::string challenge = hosting::http_field(answer->head, "www-authenticate");
    answer =
        ask(request, auth::http_digest_answer(challenge, request.token, "GET", target_of(request)));
  }
  if (!answer) return answer.error();
  if (answer->has_status(" 307 ") && redirects > 0) {
    auto place =
        parse_host_port(place_of(hosting::http_field(answer->head, "location")), 1, std::nullopt);
    if (place) {
      request.endpoint = std::move(*place);
      return begin(std::move(request), redirects - 1);
    }
  }
  if (answer->has_status(" 401 ")) {
    return exit_error(kExitRefused, "{}",
                      request.token.empty()
                          ? "this job has a token; give it with --rdzv-token-file FILE or in "
                            "DDP_RDZV_TOKEN"
                          : "this job has another token");
  }
  if (!answer->has_status(" 200 ")) return refusal(*answer);
  return answer;
}

}  // namespace

Result<void> follow_trace(const TraceRequest& request,
                          const std::function<bool(std::string_view events)>& more) {
  auto answer = begin(request, kRedirects);
  if (!answer) return answer.error();
  std::string end;  // The last bytes.
  while (true) {
    const auto is_there = answer->socket.can_read(Clock::now() + kLook);
    const Result<std::string> events =
        is_there && *is_there ? answer->socket.read_some(Clock::now() + kLimit) : std::string();
    if (!is_there || !events) break;
    end += *events;
    end.erase(0, end.size() - std::min(end.size(), kEndBytes));
    if (!more(*events)) return {};
  }
  if (end.find("\"trace_end\"") != std::string::npos) return {};
  return exit_error(kExitCoordinatorLost,
                    "the trace was cut off before the job was over; if another node coordinates "
                    "now, ask again");
}

}  // namespace ddp::trace
