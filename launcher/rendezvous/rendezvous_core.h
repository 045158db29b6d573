#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/job_history.h"
#include "launcher/rendezvous/job_record.h"
#include "launcher/rendezvous/job_status.h"
#include "launcher/rendezvous/silence.h"

// The coordinator of jobs as a deterministic object: messages and time in, actions out. It owns
// membership, the round number and the restart budget of every job. No sockets, no clock, no
// threads; launcher/server feeds it.
namespace ddp::rendezvous {

using ConnectionId = std::uint64_t;  // The shell's name for one agent connection; never reused.

struct SendTo {
  ConnectionId to = 0;
  wire::CoordinatorMessage message;
};
// Close the connection once everything sent before has left.
struct CloseConnection {
  ConnectionId connection = 0;
};
// A round is about to start (its RoundStart messages follow in the same batch).
struct RoundBegins {
  std::string job_id;
  Round round = 0;
};
// The job is over and every connected member has been sent `finish`. Its record stays so that late
// joins are refused.
struct JobFinished {
  std::string job_id;
  wire::Finish finish;
};
// Store this record where the next coordinator finds it, before any later action is carried out, in
// this batch or a later one. Shells that store no records ignore it.
struct Persist {
  JobRecord record;
};
using Action = std::variant<SendTo, CloseConnection, RoundBegins, JobFinished, Persist>;

struct CoreOptions {
  Duration heartbeat{1'000};  // At most. With a short lease it is a fifth of that.
  // How long the nodes of an earlier coordinator's round may take to come to this one; nothing: the
  // lease and a second more.
  std::optional<Duration> return_limit{};
  // What the shell knows of a node that has not come to this coordinator; nothing if it knows
  // nothing. The function may be empty.
  std::function<std::optional<Silence>(const NodeId& node_id)> silence_of{};
  Duration waiting_repeat{5'000};  // Period of the `waiting` message while nodes are missing.
  bool has_token = false;          // Only nodes that know a token come here; for people.
  // How long a round goes on while all its failures are secondary, because the worker that caused
  // them may still be exiting. A hung worker never exits, so recovery from a hang takes this much
  // longer. Recovery from a crash does not wait.
  Duration cause_wait{3'000};
};

class Job;

// One object per daemon, used by one thread; nothing here blocks. Every call returns actions, which
// the caller must carry out in order before the next call. `now` never goes backwards. Invalid
// messages from agents are refused or ignored; they never break an invariant.
class RendezvousCore {
 public:
  explicit RendezvousCore(CoreOptions options = {});
  ~RendezvousCore();

  // `peer_address` is the connection's numeric source address. It is used if a join names no
  // address.
  std::vector<Action> on_message(TimePoint now, ConnectionId from,
                                 const wire::AgentMessage& message, std::string_view peer_address);
  // The connection is gone, for whatever reason. `silent`: for how long the machine at its other
  // end has said nothing, not even that it lives. Idempotent.
  std::vector<Action> on_disconnect(TimePoint now, ConnectionId connection,
                                    Duration silent = Duration{0});
  // Does what is due. May be called at any time.
  std::vector<Action> on_tick(TimePoint now);
  // When on_tick() is needed next; nothing if no time limit runs.
  std::optional<TimePoint> next_deadline() const;

  // Restores a job from the earlier coordinator's record: it continues with these numbers, or is
  // over. `history`: what that one has told of it, if it has. Call it before any join of the job.
  void restore(TimePoint now, const JobRecord& record, std::optional<JobHistory> history = {});

  // The node leaves for good, as if its agent had sent Leave. Does nothing if it is not in.
  std::vector<Action> leave(TimePoint now, const std::string& job_id, const NodeId& node_id,
                            const std::string& reason);

  // Ends a job from outside (the user interrupted its ddp-run): sends `finish` with this status to
  // every member. Does nothing if the job is unknown or over.
  std::vector<Action> end_job(TimePoint now, const std::string& job_id, int exit_code,
                              const std::string& reason);

  // The connection of the agent whose node has this rank in the running round, and the rank's
  // number on that node.
  std::optional<std::pair<ConnectionId, int>> place_of(const std::string& job_id, Rank rank) const;
  // The connections of the nodes that are in the job.
  std::vector<ConnectionId> agents_of(const std::string& job_id) const;
  // What a job has been through; null if there is no such job.
  const JobHistory* history_of(const std::string& job_id) const;
  // The last failure of the job in full, as in its report; empty if none is known.
  std::string failure_text(const std::string& job_id) const;
  // All jobs, by their ids.
  std::vector<JobStatus> status(TimePoint now) const;
  // What each of them has been through (job_history.h), with its "job_id"; in the same order.
  // Only of `job_ids`, if there are any.
  nlohmann::json history(TimePoint now, const std::set<std::string>& job_ids = {}) const;

 private:
  std::vector<Action> on_join(TimePoint now, ConnectionId from, const wire::Join& join,
                              std::string_view peer_address);
  std::vector<std::string> waiting_jobs() const;
  // Forgets connections that `actions` close, and jobs without nodes.
  std::vector<Action> settled(std::vector<Action> actions);

  CoreOptions options_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  // Of jobs that nobody has joined since restore().
  std::map<std::string, std::pair<JobRecord, std::optional<JobHistory>>> restored_;
  std::map<ConnectionId, std::string> job_of_;  // Connections that have joined.
  std::deque<std::string> finished_;            // Jobs that are over, oldest first.
};

}  // namespace ddp::rendezvous
