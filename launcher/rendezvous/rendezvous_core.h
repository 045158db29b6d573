#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/job_record.h"
#include "launcher/rendezvous/job_status.h"

// The coordinator of jobs as a deterministic object: messages and time in, actions out. It owns
// membership, the round number and the restart budget of every job. No sockets, no clock, no
// threads; launcher/server feeds it.
namespace ddp::rendezvous {

using ConnectionId = std::uint64_t;  // The shell's name for one agent connection; never reused.

struct SendTo {
  ConnectionId to = 0;
  wire::CoordinatorMessage message;
};
// Close once everything sent before has left.
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
// What follows, in this batch and in later ones, must not leave before this record is where the
// next coordinator finds it. Where nobody keeps records it is ignored.
struct Persist {
  JobRecord record;
};
using Action = std::variant<SendTo, CloseConnection, RoundBegins, JobFinished, Persist>;

struct CoreOptions {
  Duration heartbeat{1'000};
  Duration lease{5'000};
  Duration waiting_repeat{5'000};  // Period of the `waiting` message while nodes are missing.
  // How long a round goes on after failures that all follow from another one: the worker that
  // caused them may still be ending. A hung one does not, so this adds to the time in which a job
  // gets over a hang; a crash is not held up.
  Duration cause_wait{3'000};
};

class Job;

// Owner and thread: one object per daemon, driven by one thread; nothing here blocks. Every call
// returns the actions to carry out, in order, before the next call. `now` never goes backwards.
// Whatever an agent sends is input from outside: it is refused or ignored, never a broken
// invariant.
class RendezvousCore {
 public:
  explicit RendezvousCore(CoreOptions options = {});
  ~RendezvousCore();

  // `peer_address` is the connection's numeric source address; used for a join that names none.
  std::vector<Action> on_message(TimePoint now, ConnectionId from,
                                 const wire::AgentMessage& message, std::string_view peer_address);
  // The connection is gone, for whatever reason. Idempotent.
  std::vector<Action> on_disconnect(TimePoint now, ConnectionId connection);
  // Does what has become due. Harmless at any time.
  std::vector<Action> on_tick(TimePoint now);
  // When on_tick is next needed; nothing while no time limit runs.
  std::optional<TimePoint> next_deadline() const;

  // What the coordinator before this one has kept of a job: it goes on with these numbers, or is
  // over. Before any join of the job.
  void restore(TimePoint now, const JobRecord& record);

  // The node goes for good, as if its agent had said so; nothing if it is not in.
  std::vector<Action> leave(TimePoint now, const std::string& job_id, const NodeId& node_id,
                            const std::string& reason);

  // Ends a job from outside (the user interrupted its ddp-run): finish with this status to every
  // member. Does nothing where the job is unknown or over.
  std::vector<Action> end_job(TimePoint now, const std::string& job_id, int exit_code,
                              const std::string& reason);

  // Whether a job of this id is known, running or over.
  bool has_job(const std::string& job_id) const { return jobs_.contains(job_id); }

  // All jobs, by their ids.
  std::vector<JobStatus> status(TimePoint now) const;
  // {"jobs": [...]} as text.
  std::string status_json(TimePoint now) const;

 private:
  std::vector<Action> on_join(TimePoint now, ConnectionId from, const wire::Join& join,
                              std::string_view peer_address);
  // Forgets connections that `actions` close and jobs that nobody is left of.
  std::vector<Action> settled(std::vector<Action> actions);

  CoreOptions options_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<std::string, JobRecord> records_;    // Of jobs that nobody has joined since restore().
  std::map<ConnectionId, std::string> job_of_;  // Connections that have joined.
  std::deque<std::string> finished_;            // Jobs that are over, oldest first.
};

}  // namespace ddp::rendezvous
