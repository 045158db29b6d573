#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

// What an agent does, as a deterministic object: state x event -> actions. No system calls, no
// clock, no threads; agent/shell carries the actions out and reports what happened.
namespace ddp::agent {

// ---- actions, in the order in which they are to be carried out ----

struct Connect {  // Open a connection to the coordinator; answer with on_connected or
                  // on_connect_failed.
  Duration delay{0};
};
struct Disconnect {};  // Close it after what was sent has left; no on_disconnected follows.
struct SendToCoordinator {
  wire::AgentMessage message;
};
struct SpawnWorkers {  // Answer each with nothing, or on_spawn_failed.
  wire::RoundStart round;
};
// SIGTERM (or another signal) to the process group of every live worker, after the round's shared
// abort word is set and an `abort` order has gone over the control channels. `abort_reason` empty:
// only the signal.
struct SignalWorkers {
  int signal = 0;
  std::string abort_reason;
};
// SIGKILL to every process of the round: process groups, and whatever they left behind (the agent
// is their subreaper).
struct KillWorkers {};
// Nothing of the round may be left: kill what workers left behind, close log files.
// on_round_cleared answers.
struct ClearRound {};
struct Print {  // A line for the person in front of the terminal, without a prefix.
  std::string text;
};
struct Exit {
  config::AgentResult result;
};
using Action = std::variant<Connect, Disconnect, SendToCoordinator, SpawnWorkers, SignalWorkers,
                            KillWorkers, ClearRound, Print, Exit>;

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

// Life of an agent: connect, join, wait; for each round spawn, supervise, stop when told, clear;
// exit with the status of the job. README.md beside this file has the table of states and events.
//
// Owner and thread: one object per agent process, driven by one thread; nothing here blocks. Every
// call returns the actions to carry out, in order, before the next call. After Exit all calls
// return nothing. `now` never goes backwards.
//
// What the core relies on: on_worker_exit or on_spawn_failed comes exactly once for every worker of
// a SpawnWorkers, on_round_cleared once for every ClearRound, on_connected or on_connect_failed
// once for every Connect, on_disconnected once for every lost connection (none after Disconnect).
// on_message only brings messages of the connection that is open.
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
  std::vector<Action> on_spawn_failed(TimePoint now, int local_rank, int status,
                                      const std::string& why);
  std::vector<Action> on_worker_exit(TimePoint now, const WorkerExit& exit);
  std::vector<Action> on_worker_progress(TimePoint now, int local_rank, std::int64_t step);
  // `operations`: what the workers were waiting for, if the round failed; goes with Stopped.
  std::vector<Action> on_round_cleared(TimePoint now, std::vector<std::string> operations = {});
  // The user's signal to this node (forwarded by ddp-run): stop the workers with it, leave, exit
  // with 128 + signal. A second one kills them at once.
  std::vector<Action> on_signal(TimePoint now, int signal);
  // ddp-run is gone: kill everything now, exit.
  std::vector<Action> on_parent_lost(TimePoint now);
  // Does what has become due. Harmless at any time.
  std::vector<Action> on_tick(TimePoint now);
  // When on_tick is next needed; nothing while no time limit runs.
  std::optional<TimePoint> next_deadline() const;

 private:
  // The connection. Invariant: kClosed, kConnecting only while phase_ is kIdle or the round is on
  // its way out, because a node joins only when nothing of an older round lives on it.
  enum class Link {
    kClosed,      // None, and none asked for.
    kConnecting,  // Connect is out.
    kJoining,     // Join is sent, Welcome has not come.
    kJoined,
  };
  // What of the current round is on this node.
  enum class Phase {
    kIdle,      // Nothing: never started, or cleared.
    kRunning,   // Workers were spawned; some may have ended.
    kStopping,  // They were told to end; SIGKILL follows at kill_at_.
    kClearing,  // All have ended; ClearRound is out.
  };

  void handle(const wire::Welcome& message);
  void handle(const wire::Waiting& message);
  void handle(const wire::RoundStart& message);
  void handle(const wire::Stop& message);
  void handle(const wire::Finish& message);
  void handle(const wire::Refused& message);

  void begin_connecting();
  void connect(Duration delay);
  void retry(const std::string& why);
  void give_up();
  TimePoint connect_deadline() const;
  void begin_round(const wire::RoundStart& message);
  void stop_workers(int signal, const std::string& reason);
  void worker_gone(int local_rank);
  void report(wire::Failure failure);
  wire::Failure failure_of(int local_rank) const;
  bool is_consequence_of_stop(const WorkerExit& exit) const;
  void clear_round();
  void settle();
  void end(int exit_code, std::string summary, std::string report);
  void exit_now();
  template <typename T>
  void emit(T action) {
    actions_.emplace_back(std::move(action));
  }
  void send(wire::AgentMessage message) { emit(SendToCoordinator{std::move(message)}); }
  std::vector<Action> take();
  std::string endpoint() const;

  const config::JobSpec spec_;
  Round last_round_;
  int restarts_;

  TimePoint now_;                // Of the call that is being served.
  std::vector<Action> actions_;  // Of the call that is being served.

  Link link_ = Link::kClosed;
  bool was_joined_ = false;  // Whether any connection got as far as kJoined.
  Duration backoff_{0};      // Before the next attempt.
  TimePoint joined_at_;
  TimePoint connecting_since_;
  TimePoint next_notice_;  // When a person is next told that nobody answers.
  std::string last_error_;
  Duration heartbeat_{1'000};
  TimePoint next_heartbeat_;

  wire::Waiting waiting_;  // As last printed.
  TimePoint waiting_printed_;

  Phase phase_ = Phase::kIdle;
  wire::RoundStart round_;
  std::set<int> live_;  // Local ranks that have not ended. Empty in kIdle and kClearing.
  // Failures since Stop or the signal, for Stopped; those before were sent one by one.
  std::vector<wire::Failure> late_failures_;
  std::vector<std::string> operations_;  // For Stopped.
  bool failed_ = false;  // A worker of the round failed, so the round cannot succeed.
  std::int64_t step_ = -1;
  int stop_signal_ = 0;  // What the workers were told to end with.
  TimePoint kill_at_;

  // What follows once the round is cleared, in the order of settle().
  std::optional<config::AgentResult> ending_;  // The agent exits.
  bool leaving_ = false;            // ... and tells the coordinator that it goes for good.
  std::optional<Round> stop_owed_;  // Stopped is owed for this round.
  bool success_owed_ = false;       // Succeeded is owed.
  std::optional<wire::RoundStart> next_round_;  // To be started.
  bool exited_ = false;
};

}  // namespace ddp::agent
