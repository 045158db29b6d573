#include "agent/shell/event_log.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/process/spawn_program.h"
#include "agent/process/worker_env.h"
#include "common/base/json_text.h"

namespace ddp::agent {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kJson = "json:";

Rank first_rank(const wire::RoundStart& round) {
  const auto group_rank = static_cast<std::size_t>(round.group_rank);
  return group_rank < round.members.size() ? round.members[group_rank].first_rank : 0;
}

}  // namespace

std::string event_json(const config::JobSpec& spec, const wire::RoundStart& round,
                       const StatusEvent& event) {
  Json details = {{"group_world_size", round.members.size()}, {"entry_point", spec.program}};
  Json rank;
  Json worker_id;
  if (const WorkerExit* worker = event.worker; worker != nullptr) {
    rank = first_rank(round) + worker->local_rank;
    worker_id = std::to_string(worker->pid);
    // A list with one number, as torchelastic writes a Python tuple.
    details["local_rank"] = Json::array({worker->local_rank});
    const RolePlace place = role_place(round);
    details["role_rank"] = Json::array({place.first_rank + worker->local_rank});
    details["role_world_size"] = Json::array({place.workers});
    // Python writes signals as negative exit codes.
    details["exit_code"] = worker->signal != 0 ? -worker->signal : worker->exit_code;
    details["worker_pid"] = worker->pid;
  }
  Json raw_error;
  if (!event.raw_error.empty()) raw_error = event.raw_error;
  const Json metadata = {{"run_id", spec.job_id},
                         {"global_rank", rank},
                         {"group_rank", round.group_rank},
                         {"worker_id", worker_id},
                         {"role", spec.role},
                         {"hostname", spec.host},
                         {"state", event.state},
                         {"total_run_time", event.run_time_s},
                         {"rdzv_backend", "c10d"},
                         {"raw_error", raw_error},
                         {"metadata", dump_ordered_json(details)},
                         {"agent_restarts", round.restarts}};
  return dump_ordered_json(Json{{"name", "torchelastic.worker.status." + event.state},
                                {"source", event.worker != nullptr ? "WORKER" : "AGENT"},
                                {"timestamp", event.time_ms},
                                {"metadata", metadata}});
}

EventLog::EventLog(const config::JobSpec& spec, std::shared_ptr<Console> console, FileWriter& files)
    : spec_(spec), console_(std::move(console)), files_(files), began_(Clock::now()) {
  to_console_ = spec.event_log == "console";
  if (!spec.event_log.starts_with(kJson)) return;
  const std::string path = spec.event_log.substr(kJson.size());
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file) {
    file_ = std::make_shared<const UniqueFd>(keep_back(std::move(file)));
    return;
  }
  console_->print(fmt::format("ddp-run: --event-log-handler {}: {}; ddp-run goes on without events",
                              spec.event_log, std::generic_category().message(errno)));
}

void EventLog::round_began(const wire::RoundStart& round) {
  if (!enabled()) return;
  round_ = round;
  stop_signal_.reset();
  record({.state = "HEALTHY"});
}

void EventLog::workers_stopped(int signal) { stop_signal_ = signal; }

void EventLog::worker_ended(const WorkerExit& exit) {
  if (!enabled()) return;
  StatusEvent event;
  event.worker = &exit;
  const bool terminated = stop_signal_ && (exit.signal == *stop_signal_ || exit.signal == SIGKILL ||
                                           exit.exit_code == 128 + *stop_signal_);
  if (exit.signal == 0 && exit.exit_code == 0) {
    event.state = "SUCCEEDED";
  } else if (terminated) {
    event.state = "TERMINATED";
  } else {
    event.state = "FAILED";
    const std::string text = exit.message.empty() ? exit.cause : exit.message;
    if (!text.empty()) event.raw_error = dump_ordered_json(Json::object({{"message", text}}));
  }
  record(std::move(event));
}

void EventLog::agent_ended(const config::AgentResult& result) {
  if (!enabled()) return;
  StatusEvent event;
  event.state = result.exit_code == 0 ? "SUCCEEDED" : "FAILED";
  if (result.exit_code != 0)
    event.raw_error = dump_ordered_json(Json::object({{"message", result.summary}}));
  record(std::move(event));
}

void EventLog::record(StatusEvent event) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  event.time_ms =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  event.run_time_s = std::chrono::duration_cast<seconds>(Clock::now() - began_).count();
  std::string line = event_json(spec_, round_, event);
  if (to_console_) console_->print(line);
  line += '\n';
  if (file_ == nullptr) return;
  // Errors are ignored: a full disk must not end the job, and the next line may fit again.
  const auto write = [file = file_, line]() -> Result<void> {
    [[maybe_unused]] const ssize_t written = ::write(file->get(), line.data(), line.size());
    return {};
  };
  files_.run(write, {});
}

}  // namespace ddp::agent
