#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/wire/control_messages.h"
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
// Hand the round to the workers that have parked, and start the others (from standby processes if
// there are any). Answer with on_spawn_failed for each worker that could not be started, and with
// on_worker_hello for each that was there before.
struct SpawnWorkers {
  wire::RoundStart round;
};
// Set the round's shared abort word and send an `abort` order to every live worker. Then send
// `signal` to the process group of each worker that is not in `keep`. If `abort_reason` is empty,
// only send the signal.
struct SignalWorkers {
  int signal = 0;
  std::string abort_reason;
  std::set<int> keep = {};  // Local ranks.
};
// Send SIGKILL to every process of the round: the process groups, and the processes that they left
// behind (the agent is their subreaper). Workers in `keep` and their children are left alone.
struct KillWorkers {
  std::set<int> keep = {};
};
// Remove everything of the round but the parked workers in `keep`: kill the processes that the
// others left behind, and close their log files and the round's memory. Answer with
// on_round_cleared.
struct ClearRound {
  std::set<int> keep = {};
  // SIGKILL was given this long. Do not wait for processes that still live. 0: wait for them.
  Duration killed_for{0};
};
// Order `commit_request` to those workers of the round that are in `from`; each answers with
// on_worker_committed, or ends.
struct RequestCommit {
  Round round = kNoRound;
  std::int64_t deadline_ms = 0;
  std::set<int> from;
};
// Order `checkpoint_request` to the workers: write a checkpoint as soon as possible.
struct RequestCheckpoint {};
// These workers have made no progress for too long. Find out from the round's flight records which
// of them wait in an operation for another rank. Answer with on_hung_workers for the others.
struct FindHung {
  std::set<int> stalled;
};
// Write the stacks of all threads of this worker to its log and the console.
struct DumpStacks {
  int local_rank = 0;
};
// SIGKILL to this worker once its stacks are written; its WorkerExit says `cause`.
struct KillWorker {
  int local_rank = 0;
  std::string cause;
};
struct Print {  // A line for the person in front of the terminal, without a prefix.
  std::string text;
};
struct Exit {
  config::AgentResult result;
  // True: the writers of snapshots go on alone. False: they are killed with everything else.
  bool spare_writers = false;
};
using Action = std::variant<Connect, Disconnect, SendToCoordinator, SpawnWorkers, SignalWorkers,
                            KillWorkers, ClearRound, RequestCommit, RequestCheckpoint, FindHung,
                            DumpStacks, KillWorker, Print, Exit>;

// How a worker ended, with what the shell knows of it.
struct WorkerExit {
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;
  int signal = 0;
  std::int64_t time_ms = 0;  // Wall clock: when it failed, from its error file if there is one.
  Duration age{0};           // How long ago that was.
  bool has_error_file = false;
  bool secondary = false;  // From the control channel's `error`.
  std::string message;     // Likewise.
  std::string cause;       // What the shell found out (see wire::Failure).
  std::string callstack;   // Likewise.
  std::string log_path;
  std::vector<std::string> stderr_tail;
};

// The life of an agent: connect, join, wait. For each round: spawn, supervise, stop when told,
// clear. At the end, exit with the status of the job. A round goes on while the coordinator is
// away. The README.md of this folder has the table of states and events.
//
// Owner and thread: one object per agent process, driven by one thread; nothing here blocks. Every
// call returns the actions to carry out, in order, before the next call. After Exit all calls
// return nothing. `now` never goes backwards.
//
// What the core relies on:
//   * on_worker_exit or on_spawn_failed comes exactly once for each worker that a SpawnWorkers has
//     started, also if it ends while it is parked and no round runs; but not for one that a
//     ClearRound has given up;
//   * on_round_cleared comes once for each ClearRound, and on_hung_workers once for each FindHung;
//   * on_connected, on_connect_failed or on_connect_refused comes once for each Connect;
//   * on_disconnected comes once for each lost connection, and never after Disconnect;
//   * on_message brings only messages of the connection that is open.
class AgentCore {
 public:
  // `restarts` and `last_round` come from an earlier agent of this node that was lost; without one
  // they are 0 and kNoRound.
  AgentCore(config::JobSpec spec, Round last_round, int restarts);

  std::vector<Action> start(TimePoint now);
  std::vector<Action> on_connected(TimePoint now);
  std::vector<Action> on_connect_failed(TimePoint now, const std::string& why);
  // Something answers, but the two sides could not prove to each other that they belong to one job.
  std::vector<Action> on_connect_refused(TimePoint now, const std::string& why);
  std::vector<Action> on_disconnected(TimePoint now);
  std::vector<Action> on_message(TimePoint now, const wire::CoordinatorMessage& message);
  // The coordinator is there from now on. The shell has told the link.
  void on_moved(const std::string& host, int port) { coordinator_ = {.host = host, .port = port}; }
  // Worker `local_rank` could not be started. `status` is 126 or 127 if the program is at fault.
  std::vector<Action> on_spawn_failed(TimePoint now, int local_rank, int status,
                                      const std::string& why);
  std::vector<Action> on_worker_exit(TimePoint now, const WorkerExit& exit);
  // The worker has been in state D for longer than it may, and still is. `exit` is as if SIGKILL
  // had ended it.
  std::vector<Action> on_worker_stuck(TimePoint now, const WorkerExit& exit);
  std::vector<Action> on_worker_progress(TimePoint now, int local_rank, std::int64_t step);
  // What people want to know. The next heartbeat carries it.
  void on_worker_metrics(int local_rank, const wire::Progress& progress);
  // What workers say on their control channels.
  std::vector<Action> on_worker_hello(TimePoint now, int local_rank, bool reconfigurable);
  void on_worker_joined(int local_rank, Round round);
  std::vector<Action> on_worker_parked(TimePoint now, int local_rank, Round round,
                                       std::int64_t step);
  std::vector<Action> on_worker_committed(TimePoint now, int local_rank, Round round,
                                          std::int64_t step);
  // The answer to FindHung: the workers that do not wait for another rank.
  std::vector<Action> on_hung_workers(TimePoint now, const std::set<int>& hung);
  // `operations`: what the workers were waiting for, if the round failed. Stopped carries it.
  std::vector<Action> on_round_cleared(TimePoint now, std::vector<std::string> operations = {});
  // The processes of earlier rounds that SIGKILL has not ended, in words; empty: none lives. Call
  // before on_message. While there are some, this node starts no workers: they would need what
  // those hold, such as a device. It leaves when a round begins.
  void on_unkillable(std::string processes) { unkillable_ = std::move(processes); }
  // How many snapshots of checkpoints this node still has to write. Call whenever that changes. It
  // must come to 0 in bounded time. Until then this node does not exit: it leaves the job and then
  // waits.
  std::vector<Action> on_snapshots(TimePoint now, int count);
  // JobSpec.checkpoint_at_ms has come: the workers are asked for a last checkpoint. Once it is
  // written, this node stops as if SIGTERM had come.
  std::vector<Action> on_checkpoint_moment(TimePoint now);
  // The user's signal to this node, forwarded by ddp-run. JobSpec.checkpoint_signal only asks the
  // workers for a checkpoint. Any other one stops the workers with it, leaves the job and exits
  // with 128 + signal. A second one kills the workers at once, and gives up snapshots that are not
  // written yet.
  std::vector<Action> on_signal(TimePoint now, int signal);
  // ddp-run is gone: kills everything now and exits.
  std::vector<Action> on_parent_lost(TimePoint now);
  // Does what is due. May be called at any time.
  std::vector<Action> on_tick(TimePoint now);
  // When on_tick is next needed. Empty while no time limit runs.
  std::optional<TimePoint> next_deadline() const;

 private:
  // The connection. A node joins while it is idle, or with the round that it runs. A round that is
  // being stopped is cleared first.
  enum class Link {
    kClosed,      // No connection, and none requested.
    kConnecting,  // Connect was emitted and not answered yet.
    kJoining,     // Join is sent, Welcome has not come.
    kJoined,
  };
  // How far the current round is on this node.
  enum class Phase {
    kIdle,      // No worker takes part in a round. Parked workers may wait for the next one.
    kRunning,   // Workers were spawned. Some may have ended.
    kStopping,  // They were told to end or to park. SIGKILL follows at Stopping::kill_at.
    kClearing,  // All have ended or parked. ClearRound was emitted and not answered yet.
  };

  // A failure, and when it happened.
  struct Seen {
    wire::Failure failure;
    TimePoint when;
  };
  // The search for the coordinator. Assigned when it begins.
  struct Search {
    TimePoint since = {};
    TimePoint next_notice = {};  // When to print next that nobody answers.
  };
  // The connection in Link::kJoined. Assigned when Welcome comes.
  struct Joined {
    std::string at = {};  // The rendezvous; there may be another one before this connection ends.
    TimePoint since = {};
    Duration heartbeat = Duration{1'000};
    TimePoint next_heartbeat = {};
  };
  // A commit that the coordinator has ordered: NodeCommitted is owed. Assigned when CommitRound
  // comes; gone when it is answered, and with the round, its stop or the connection.
  struct Commit {
    std::set<int> awaited = {};  // Local ranks.
    std::int64_t step = -1;      // The least of those that have answered.
  };
  // What was reported last by the worker with the least local rank that has reported metrics.
  struct Metrics {
    int local_rank = 0;
    wire::Progress progress = {};
  };
  // How the workers of the round are being stopped, in kStopping. Assigned when they are told.
  struct Stopping {
    int signal = 0;              // What they were told to end with.
    TimePoint since = {};        // When they were told.
    std::set<int> keeping = {};  // Those of live that need not end if they park in time.
    TimePoint park_at = {};      // When to tell those of keeping that have not parked to end.
    TimePoint kill_at = {};
    std::optional<TimePoint> killed_at = {};   // When SIGKILL was sent first.
    std::optional<TimePoint> give_up_at = {};  // When to stop waiting after SIGKILL.
  };
  enum class Success {
    kNone,
    kOwed,  // All workers have succeeded, and the coordinator does not know it yet.
    kTold,  // Succeeded was sent, and the round has not been ended since.
  };
  // The round that runs on this node, or ran last, and its workers by local rank. Only
  // begin_round() begins one, and it assigns the whole.
  struct RoundState {
    wire::RoundStart start = {};
    std::set<int> live = {};  // Those that have not ended. Empty in kIdle and kClearing.
    // Those that have left the round and wait for the next one. A subset of live while live is not
    // empty.
    std::set<int> parked = {};
    std::set<int> hello = {};           // Those that have said hello.
    std::set<int> reconfigurable = {};  // Of hello: those that can take part in the next round.
    std::set<int> joined = {};          // Of hello: those that are in the round's process group.
    std::set<int> hung = {};            // Killed by us because they made no progress.
    std::map<int, TimePoint> kill_ends = {};    // Of hung: when SIGKILL should have ended them.
    std::set<int> stuck = {};                   // In state D for too long: the kernel holds them.
    std::map<int, TimePoint> progress_at = {};  // Of those that have reported progress.
    bool examining = false;                     // FindHung was emitted and not answered yet.
    std::int64_t step = -1;                     // The largest that a worker has reported.
    std::optional<Metrics> metrics = {};
    std::vector<wire::Computed> computed = {};  // By local rank.
    std::optional<Commit> commit = {};
    Stopping stop = {};
    bool failed = false;              // A worker has failed, so the round cannot succeed.
    std::vector<Seen> failures = {};  // Sent, or to be sent when the connection is back.
    // Failures of workers that ended after Stop or the signal; they go with Stopped. The others
    // were sent one by one.
    std::vector<Seen> late_failures = {};
    std::vector<std::string> operations = {};  // For Stopped.
    Success success = Success::kNone;
    TimePoint barrier_ends = {};  // In kTold: when this node stops waiting for the others.
  };
  // What the coordinator has ordered and is done once the round is cleared. Void when the
  // connection is lost.
  struct Orders {
    std::optional<Round> stop = {};                   // Stopped is owed for this round.
    std::optional<wire::RoundStart> next_round = {};  // To be started.
  };
  // Before the job's time is over, the workers are asked for a checkpoint.
  enum class LastCheckpoint { kNotYet, kAsked, kBeingWritten, kWritten };
  // The checkpoints of this node's workers, in all rounds.
  struct Checkpoints {
    int under_way = 0;  // How many snapshots are still to be written.
    bool any = false;   // There was a snapshot.
    LastCheckpoint last = LastCheckpoint::kNotYet;
  };

  void handle(const wire::Welcome& message);
  void handle(const wire::Waiting& message);
  void handle(const wire::RoundStart& message);
  void handle(const wire::CommitRound& message);
  void handle(const wire::Stop& message);
  void handle(const wire::Finish& message);
  void handle(const wire::Refused& message);
  void handle(const wire::Moved& /*message*/) {}  // The shell follows it.
  // The shell answers these.
  void handle(const wire::ShowOutput& /*message*/) {}
  void handle(const wire::ReadTrace& /*message*/) {}
  void handle(const wire::Ping& /*message*/) {}
  void handle(const wire::Notice& message) { emit(Print{message.text}); }

  void begin_connecting();
  void connect(Duration delay);
  wire::Join join_message() const;
  bool is_meeting() const;
  wire::Heartbeat heartbeat() const;
  void retry(const std::string& why);
  void give_up();
  TimePoint connect_deadline() const;
  bool is_connecting() const;
  void begin_round(const wire::RoundStart& message);
  // Workers in `keep` may park. The others must end.
  void stop_workers(int signal, const std::string& reason, std::set<int> keep = {});
  void end_kept(int signal, const std::string& reason, const std::set<int>& spared);
  void hasten_end();
  void check_all_gone();
  void note_parked_end(const WorkerExit& exit);
  void check_committed();
  std::optional<TimePoint> stall_deadline() const;
  void look_for_stalled();
  void look_for_unkilled();
  void report(wire::Failure failure, Duration age = Duration{0});
  void send_failure(const Seen& seen);
  wire::Failure aged(const Seen& seen) const;
  std::int64_t sent_ms() const;  // Of a message that is sent now.
  // Whether this node's last round still goes on: it runs, or it has succeeded here and nobody has
  // ended it.
  bool holds_round() const;
  void send_what_waited();
  void tell_success();
  bool waits_for_others() const;
  void leave_the_others();
  wire::Failure failure_of(int local_rank) const;
  wire::Failure failure_of(const WorkerExit& exit) const;
  bool ended_by_stop(const WorkerExit& exit) const;
  bool failed_before_stop(const WorkerExit& exit) const;
  void clear_round(Duration killed_for = Duration(0));
  void leave_to_others();
  void kill_workers();
  Duration kill_patience() const;
  void settle();
  void end(int exit_code, std::string summary, std::string report);
  void leave_and_exit();
  void exit_now();
  bool note_last_checkpoint();
  void stop_by_signal(int signal);
  template <typename T>
  void emit(T action) {
    actions_.emplace_back(std::move(action));
  }
  void send(wire::AgentMessage message) { emit(SendToCoordinator{std::move(message)}); }
  std::vector<Action> take();
  std::string endpoint() const;

  const config::JobSpec spec_;
  HostPort coordinator_;  // For people.
  std::string unkillable_;
  Round last_round_;
  int restarts_;

  TimePoint now_;                // Of the current call.
  std::vector<Action> actions_;  // Of the current call.

  Link link_ = Link::kClosed;
  bool was_joined_ = false;  // Whether any connection has reached kJoined.
  Duration backoff_{0};      // Before the next attempt.
  std::string last_error_;
  Search search_;
  Joined joined_;

  wire::Waiting waiting_;  // As last printed.
  TimePoint waiting_printed_;

  Phase phase_ = Phase::kIdle;
  RoundState round_;
  Orders orders_;
  Checkpoints checkpoints_;

  // Set: the agent exits once the round is cleared.
  std::optional<config::AgentResult> ending_;
  bool leaving_ = false;  // And it first tells the coordinator that it leaves for good.
  int signals_ = 0;       // How many times signals have asked for the end.
  TimePoint asked_at_;    // When the end was asked for last, by whatever.
  bool parent_lost_ = false;
  bool left_ = false;  // Only snapshots that are being written keep this agent from exiting.
  bool exited_ = false;
};

}  // namespace ddp::agent
