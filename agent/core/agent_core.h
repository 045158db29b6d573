#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

// What an agent does, as a deterministic object: state x event -> actions. No system calls, no clock, no threads;
// agent/shell carries the actions out and reports what happened.
namespace ddp::agent {

// ---- actions, in the order in which they are to be carried out ----

struct Connect {  // Open a connection to the coordinator; answer with on_connected or on_connect_failed.
  Duration delay{0};
};
struct Disconnect {};  // Close it after what was sent has left; no on_disconnected follows.
struct SendToCoordinator {
  wire::AgentMessage message;
};
struct SpawnWorkers {  // Answer each with nothing, or on_spawn_failed.
  wire::RoundStart round;
};
// SIGTERM (or another signal) to the process group of every live worker, after the round's shared abort word is set and
// an `abort` order has gone over the control channels. `abort_reason` empty: only the signal.
struct SignalWorkers {
  int signal = 0;
  std::string abort_reason;
};
// SIGKILL to every process of the round: process groups, and whatever they left behind (the agent is their subreaper).
struct KillWorkers {};
// Nothing of the round may be left: kill what workers left behind, close log files. on_round_cleared answers.
struct ClearRound {};
struct Print {  // A line for the person in front of the terminal.
  std::string text;
};
struct Exit {
  config::AgentResult result;
};
using Action = std::variant<Connect, Disconnect, SendToCoordinator, SpawnWorkers, SignalWorkers, KillWorkers, ClearRound,
                            Print, Exit>;

// How a worker ended, with what the shell knows of it.
struct WorkerExit {
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;
  int signal = 0;
  std::int64_t time_ms = 0;  // Wall clock, for people.
  bool secondary = false;    // From the control channel's `error`.
  std::string message;       // Likewise.
  std::string log_path;
  std::vector<std::string> stderr_tail;
};

class AgentCore {
 public:
  // `restarts` and `last_round` come from a predecessor that was lost, else 0 and kNoRound.
  AgentCore(config::JobSpec spec, Round last_round, int restarts);

  std::vector<Action> start(TimePoint now);
  std::vector<Action> on_connected(TimePoint now);
  std::vector<Action> on_connect_failed(TimePoint now, const std::string& why);
  std::vector<Action> on_disconnected(TimePoint now);
  std::vector<Action> on_message(TimePoint now, const wire::CoordinatorMessage& message);
  // Worker `local_rank` could not be started; status is 126 or 127 where the program is at fault.
  std::vector<Action> on_spawn_failed(TimePoint now, int local_rank, int status, const std::string& why);
  std::vector<Action> on_worker_exit(TimePoint now, const WorkerExit& exit);
  std::vector<Action> on_worker_progress(TimePoint now, int local_rank, std::int64_t step);
  std::vector<Action> on_round_cleared(TimePoint now);
  // The user's signal to this node (forwarded by ddp-run): stop the workers with it, leave, exit with 128 + signal.
  std::vector<Action> on_signal(TimePoint now, int signal);
  // ddp-run is gone: kill everything now, exit.
  std::vector<Action> on_parent_lost(TimePoint now);
  std::vector<Action> on_tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  enum class State;
};

}  // namespace ddp::agent
