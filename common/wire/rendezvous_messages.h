#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/config/job_rules.h"
#include "common/wire/member_list.h"

// Messages between agents and the coordinator. JSON objects {"type": ..., fields...}, one per
// frame. PROTOCOL.md describes the conversation. Unknown fields are ignored and absent ones take
// the default below, so that a newer side can add fields.
namespace ddp::wire {

// One failed worker, agent or node, as its own agent (or, for a lost agent, the coordinator) saw
// it.
struct Failure {
  // "worker", "start" (could not be started), "stuck" (lives on in state D), "agent" (connection
  // lost), "lease" (silent for too long).
  std::string kind = "worker";
  NodeId node_id;
  std::string host;
  int group_rank = -1;
  Rank rank = -1;  // -1 if it is not the failure of one worker.
  int local_rank = -1;
  int pid = 0;
  int exit_code = 0;  // As waitpid gives it; 0 if a signal ended it.
  int signal = 0;     // 0 if it exited by itself.
  // When it failed, in milliseconds since the epoch by the reporting node's clock. Comparable only
  // with times of the same node.
  std::int64_t time_ms = 0;
  // How long before the sending of this message it failed, by the same clock. This orders it among
  // the failures of other nodes, whose clocks may differ.
  std::int64_t age_ms = 0;
  // True: time_ms is from the worker's error file. False: it is when its end was seen.
  bool own_time = false;
  // It had already failed when the round was stopped, and was ended with the round.
  bool was_ending = false;
  // A consequence of another failure: the worker said so before it ended (control message "error"
  // with secondary set) or exited with kExitCollectiveFailed. It is never named as the root cause
  // if another failure of the round is known.
  bool secondary = false;
  std::string message;  // Exception text, errno text; empty if unknown.
  // What the agent found out about its end: "killed by the kernel: out of memory (memory.max of ...
  // is 2 GiB)", "no progress for 30 s; its stacks are in its log"; empty if nothing.
  std::string cause;
  std::string callstack{};  // Of the exception, several lines; empty if unknown.
  std::string log_path;     // Of this worker's standard error; empty without --log-dir.
  std::vector<std::string> stderr_tail;  // Last lines, oldest first, at most 20.

  // 128 + signal, or exit_code.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// ---- agent to coordinator ----
//
// `sent_ms` of a message: its sender's monotonic clock when it sent it, in milliseconds; 0:
// unknown. From it the coordinator knows how long a message was under way
// (rendezvous/node_clock.h).

// First message of a connection. A join with the node_id of a node that has already joined replaces
// (and fences) that one.
struct Join {
  std::string job_id;
  NodeId node_id;
  std::string host;  // Name for people.
  // Numeric address of the node; empty: the source address of the connection.
  std::string address;
  int node_rank = -1;              // The requested group rank, or -1.
  bool node_rank_is_wish = false;  // If another node has node_rank, this one joins without it.
  std::string program{};  // What the user named on the command line, for the report's heading.
  int nproc = 1;          // How many workers this node starts.
  std::string role{kDefaultRole};  // The role of its workers (ROLE_NAME).
  config::JobRules rules{};        // A node with other rules than the job's is refused.
  // What the agent knows of the job, so that a restarted coordinator goes on with the numbers of
  // the lost one.
  Round last_round = kNoRound;
  int restarts = 0;
  bool was_joined = false;  // To this or another coordinator of the job.
  // The round that runs on this node while it joins, because its connection was lost and its
  // workers go on; kNoRound: none. group_rank and members are the node's place in it, from its
  // RoundStart.
  Round running_round = kNoRound;
  int group_rank = -1;
  MemberList members{};
  // The workers of this node cannot share the rendezvous' store; see RoundStart::store_port.
  bool needs_own_store = false;
  int store_port = 0;    // A port reserved on this node for that store; 0: none.
  int replica_port = 0;  // Where this node's ddp-run can take over the job; 0: it cannot.
  // Why the node cannot take part, as its health check found; the coordinator refuses it, and the
  // job knows the reason. Empty: nothing is known against it.
  std::string unfit{};
  std::string release{};  // Of ddp-run on that node (common/base/release.h); empty: unknown.
};

// How far a worker has come, and how long it has not waited for other ranks until the end of that
// step (Progress::computed_ms).
struct Computed {
  std::int64_t step = -1;
  double ms = std::numeric_limits<double>::quiet_NaN();  // NaN: unknown.

  friend bool operator==(const Computed&, const Computed&) = default;
};

// What became of a rank's share of a checkpoint.
struct SavedShare {
  Round round = kNoRound;  // In which its worker has begun to save.
  std::int64_t step = -1;
  std::int64_t bytes = 0;
  double seconds = 0;      // How long it took to write.
  bool published = false;  // With this share the whole checkpoint is there.
  std::string error{};     // Why it was not written; empty: it was.

  friend bool operator==(const SavedShare&, const SavedShare&) = default;
};

struct Heartbeat {
  // The largest step that the node's workers have reported in this round; -1: none.
  std::int64_t step = -1;
  // The latest values of the node's first worker that reports any; NaN: unknown.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double samples_per_second = std::numeric_limits<double>::quiet_NaN();
  std::int64_t total_steps = 0;      // As it reports them; 0: unknown.
  std::vector<Computed> computed{};  // By local rank, as far as workers have told.
  // Workers of the node are about to meet the others at the rendezvous' store. If that is lost, so
  // is the round.
  bool meeting = false;
  // Sentences about operations that have waited for other ranks for a second or longer, as
  // Stopped::operations.
  std::vector<std::string> waits{};
  std::vector<SavedShare> saved{};  // Since the last heartbeat.
  std::int64_t sent_ms = 0;
  // The round of which the rest tells. kNoRound: none has begun on the node, or its release of
  // ddp-run does not say.
  Round round = kNoRound;
  // What the loss is instead of a finite number: "NaN", "inf" or "-inf"; empty otherwise.
  std::string loss_is{};
};

// Answer to ShowOutput.
struct Output {
  std::uint64_t id = 0;
  std::string out{};  // The last lines of the worker's standard output, with their ends.
  std::string err{};  // Likewise, of its standard error.
};

// Answer to ReadTrace; also sent before the node says that a round is over for it.
struct TraceEvents {
  std::string events{};      // In Chrome's format: objects of JSON, each ended by ",\n".
  std::uint64_t lost = 0;    // How many spans were not read in time.
  bool more = false;         // There are more already.
  double fill = 0;           // Of the room of the rank that has written most; 1: none was left.
  std::int64_t sent_ns = 0;  // The node's monotonic clock when it sent this.
};

// A worker of the round ended badly. May come several times in a round. The agent goes on
// supervising the other workers.
struct WorkerFailed {
  Round round = kNoRound;
  Failure failure;
  // As Heartbeat's.
  std::int64_t step = -1;
  // Whether the node's workers have said hello. Only then is a missing step a sign of no progress.
  bool reports_progress = false;
  std::int64_t sent_ms = 0;
};

// All workers of the round on this node ended with status 0.
struct Succeeded {
  Round round = kNoRound;
  std::vector<SavedShare> saved{};  // As Heartbeat's.
};

// All workers of this node that can commit have done so after a CommitRound.
struct NodeCommitted {
  Round round = kNoRound;
  std::int64_t step = -1;
};

// Answer to Stop: nothing on this node takes part in the round any more. Its processes are gone,
// except workers that wait for the next round ("parked"). `failures` are those seen since the Stop.
struct Stopped {
  Round round = kNoRound;
  std::vector<Failure> failures;
  int parked = 0;
  // As WorkerFailed's.
  std::int64_t step = -1;
  bool reports_progress = false;
  // Sentences for the report, from the workers' flight recorders: which workers of the node waited
  // in which operation when the round failed.
  std::vector<std::string> operations{};
  int store_port = 0;  // As Join's; for the next round.
  std::int64_t sent_ms = 0;
  std::vector<SavedShare> saved{};  // As Heartbeat's.
};

// The node leaves for good, because its user stopped it. This does not end the job of the others.
struct Leave {
  std::string reason;
};

// ---- coordinator to agent ----

// Answer to Join. The agent sends a Heartbeat at least every heartbeat_ms; a node silent for
// lease_ms is lost.
struct Welcome {
  std::int64_t heartbeat_ms = 1'000;
  std::int64_t lease_ms = 5'000;
  std::string notice{};  // What the user of this node should know about its join; may be empty.
};

// Nodes are missing. Sent at each change, and repeated every few seconds.
struct Waiting {
  int have = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::vector<std::string> hosts;  // The nodes that have joined.
  std::string text;                // "2 of 4 nodes are in (a, b); 2 missing, 598 s left".
};

// Start the workers of this round. members is ordered by group rank; the receiver is
// members[group_rank].
struct RoundStart {
  Round round = 0;
  int restarts = 0;  // Of the whole job so far; TORCHELASTIC_RESTART_COUNT.
  int max_restarts = 0;
  int group_rank = 0;
  int world_size = 1;
  MemberList members{};
  // The store that workers may use. If master_addr is empty, the agent fills in the address at
  // which it reaches the coordinator.
  std::string master_addr;
  int master_port = 0;
  // The agent fills in where it reaches the coordinator: the way there shows at which address other
  // nodes reach this one. Workers may reach the store through their agent, at a loopback address.
  std::string coordinator_addr{};
  int coordinator_port = 0;
  // Not 0 if the workers of some node cannot share that store: the worker with rank 0 then makes
  // one for all of them, at this port of its node.
  int store_port = 0;
  // A random number from which agents make the key of the workers' connections between nodes
  // (agent/process/link_key.h). Empty in a job without token and TLS.
  std::string link_nonce{};
  // Ranks of an earlier round whose nodes were lost: what they were writing will not be finished.
  // Empty if there are very many.
  Round lost_round = kNoRound;
  std::vector<Rank> lost_ranks{};
  std::string reason;  // Why this round began: "first round", "rank 1 on n2 failed: signal 9", ...
};

// The round is about to end in an orderly way, because a node comes in. The workers commit at the
// next step boundary and go on. Answer NodeCommitted, at once if no worker can commit.
struct CommitRound {
  Round round = kNoRound;
  std::int64_t deadline_ms = 0;  // From now. Stop comes at the latest then.
  std::string reason;
};

// How long a worker has to leave a round before it is ended like any other. It has as long as a
// stop allows, because a worker in a long step leaves only after it, and if its process ends, its
// state in memory is lost.
constexpr std::int64_t park_limit_ms(std::int64_t stop_timeout_ms) {
  return std::max<std::int64_t>(stop_timeout_ms, 5'000);
}

// End the round on this node and answer Stopped. If keep_workers is set, workers that can take part
// in the next round keep their processes and park. The others are ended.
struct Stop {
  Round round = kNoRound;
  std::string reason;
  bool keep_workers = true;
};

// The job is over; the agent ends what still runs and exits. No answer.
struct Finish {
  int exit_code = 0;
  std::string summary;  // One line.
  // The whole report, several lines; empty on success. The coordinator's ddp-run prints it.
  std::string report;
  // The root cause as an error file of torchelastic (JSON), for a launcher above ddp-run; empty if
  // the job did not end by a failure.
  std::string error{};
};

// The join is not accepted, and would not be accepted if repeated. The connection closes after
// this.
struct Refused {
  std::string message;
  // The job does without this node, because its health check failed or it failed too often; the
  // rest of the job goes on.
  bool left_out = false;
};

// The coordinator is elsewhere; the agent connects there. The connection closes after this.
struct Moved {
  std::string host;
  int port = 0;
};

// Somebody wants to see the last lines that a worker of this node has written. Answer Output.
struct ShowOutput {
  std::uint64_t id = 0;
  int local_rank = 0;
};

// Somebody wants to see what this node's workers do. The agent answers TraceEvents with what it has
// not told yet, and stops recording if it is not asked again in time
// (agent/process/trace_reader.h). All times are nanoseconds of monotonic clocks. From those of one
// question and the answer before it, the agent knows what the coordinator's clock shows
// (agent/core/clock_offset.h).
struct ReadTrace {
  std::string clock{};           // Names the coordinator's clock: clock_name().
  std::int64_t zero_ns = 0;      // What that clock showed at time 0 of the trace.
  std::int64_t answered_ns = 0;  // TraceEvents::sent_ns of the last answer; 0: there was none.
  std::int64_t received_ns = 0;  // When the coordinator had that.
  std::int64_t sent_ns = 0;      // When it sent this.
  bool names = false;            // Somebody does not know the names of rows and ranks yet.
};

// A line for the person in front of the node's terminal.
struct Notice {
  std::string text;
};

// Nothing to do. As long as the agent's machine acknowledges it, the machine is there.
struct Ping {};

using AgentMessage = std::variant<Join, Heartbeat, WorkerFailed, Succeeded, NodeCommitted, Stopped,
                                  Leave, Output, TraceEvents>;
using CoordinatorMessage = std::variant<Welcome, Waiting, RoundStart, CommitRound, Stop, Finish,
                                        Refused, Moved, Ping, Notice, ShowOutput, ReadTrace>;

// JSON text without the frame header.
std::string encode(const AgentMessage& message);
std::string encode(const CoordinatorMessage& message);
// kProtocol, with the reason, for any bytes that are not one of the messages.
Result<AgentMessage> decode_agent_message(std::string_view payload);
Result<CoordinatorMessage> decode_coordinator_message(std::string_view payload);

}  // namespace ddp::wire
