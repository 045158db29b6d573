#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/core/agent_core.h"
#include "agent/process/console.h"
#include "agent/process/file_writer.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// The content of an event. The names are torchelastic's.
struct StatusEvent {
  std::string state{};                 // HEALTHY, SUCCEEDED, FAILED or TERMINATED.
  const WorkerExit* worker = nullptr;  // Null: the event is about the agent.
  std::string raw_error{};             // JSON; empty: null.
  std::int64_t time_ms = 0;            // Since the epoch.
  std::int64_t run_time_s = 0;         // How long the agent has run.
};

// torchelastic's Event as JSON, without a newline: name ("torchelastic.worker.status.STATE"),
// source (AGENT or WORKER), timestamp, metadata. Pure.
std::string event_json(const config::JobSpec& spec, const wire::RoundStart& round,
                       const StatusEvent& event);

// --event-log-handler: writes a line for the start of each round on this node (HEALTHY, about the
// agent), for the end of each worker, and for the end of the agent. Each line is appended with one
// write, so agents may share a file. If the file cannot be opened, the console says so and no
// events are written.
class EventLog {
 public:
  // `files` writes the lines, since a disk may stand still.
  EventLog(const config::JobSpec& spec, std::shared_ptr<Console> console, FileWriter& files);

  void round_began(const wire::RoundStart& round);
  // The agent ends workers with this signal. A worker that ends by it is TERMINATED.
  void workers_stopped(int signal);
  void worker_ended(const WorkerExit& exit);
  void agent_ended(const config::AgentResult& result);

 private:
  bool enabled() const { return file_ != nullptr || to_console_; }
  void record(StatusEvent event);

  const config::JobSpec& spec_;
  const std::shared_ptr<Console> console_;
  FileWriter& files_;
  const TimePoint began_;
  std::shared_ptr<const UniqueFd> file_;
  bool to_console_ = false;
  wire::RoundStart round_;
  std::optional<int> stop_signal_;
};

}  // namespace ddp::agent
