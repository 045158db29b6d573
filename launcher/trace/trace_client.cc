#include "launcher/trace/trace_client.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/store/socket.h"
#include "common/terminal/terminal.h"
#include "launcher/hosting/daemon_page.h"
#include "launcher/status/ask_daemon.h"

namespace ddp::trace {
namespace {

constexpr Duration kLimit{10'000};
constexpr Duration kLook{200};
constexpr std::size_t kEndBytes = 256;

// Until events follow.
Result<status::Answer> begin(const TraceRequest& request) {
  const std::string& job = request.job_id;
  auto answer = status::ask(request.daemon,
                            job.empty() ? "/trace" : "/trace?job=" + status::query_value(job));
  if (!answer || answer->status == 200) return answer;
  if (hosting::http_field(answer->head, "content-type").starts_with("text/html"))
    return status::another_program(request.daemon.endpoint, "it has no page /trace");
  const auto why = status::body_of(*answer);
  if (!why) return why.error();
  return exit_error(kExitInvalidValue, "{}", terminal::harmless(why->substr(0, why->find('\n'))));
}

}  // namespace

Result<void> follow_trace(const TraceRequest& request,
                          const std::function<bool(std::string_view events)>& more) {
  auto answer = begin(request);
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
