#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/failure_order.h"
#include "launcher/rendezvous/job_history.h"
#include "launcher/rendezvous/job_record.h"
#include "launcher/rendezvous/job_status.h"
#include "launcher/rendezvous/lateness.h"
#include "launcher/rendezvous/node_clock.h"
#include "launcher/rendezvous/node_failures.h"
#include "launcher/rendezvous/rendezvous_core.h"

namespace ddp::rendezvous {

// One job of the coordinator: which nodes are in, which round runs, what has failed, and what is
// left of the restart budget. README.md beside this file has the states and the rules.
// RendezvousCore owns the job. Every call appends its actions to `out`.
//
// Costs: handling a message takes time logarithmic in the number of nodes. Changes that all nodes
// must know (start and end of a round, which nodes are missing) also cost one message for each
// node.
class Job {
 public:
  // `first` sets the rules with which later joins must agree; its node must still call join().
  // `record`: what an earlier coordinator has stored of the job, or null. `history`: what it has
  // told of it. `waiting_jobs`: some jobs, perhaps with this one, for which
  // waits_for_its_first_round().
  Job(const CoreOptions& options, TimePoint now, const wire::Join& first, const JobRecord* record,
      std::optional<JobHistory> history, std::function<std::vector<std::string>()> waiting_jobs);

  void join(TimePoint now, ConnectionId from, const wire::Join& join, std::string_view peer_address,
            std::vector<Action>& out);
  // A message other than Join, from a connection that has joined this job.
  void message(TimePoint now, ConnectionId from, const wire::AgentMessage& message,
               std::vector<Action>& out);
  // The node leaves; this is known by other means than its connection.
  void leave(TimePoint now, const NodeId& node_id, const std::string& reason,
             std::vector<Action>& out);
  void disconnect(TimePoint now, ConnectionId from, Duration silent, std::vector<Action>& out);
  void tick(TimePoint now, std::vector<Action>& out);
  void end(TimePoint now, int exit_code, const std::string& reason, std::vector<Action>& out);

  std::optional<TimePoint> next_deadline() const;
  bool finished() const { return phase_ == Phase::kFinished; }
  // Every node has left and none can come back, so the job can be forgotten.
  bool abandoned() const;
  // Whether nodes are missing, and no round has begun yet.
  bool waits_for_its_first_round() const;
  JobStatus status(TimePoint now) const;
  // As RendezvousCore's.
  std::optional<std::pair<ConnectionId, int>> place_of(Rank rank) const;
  std::string failure_text() const;
  nlohmann::json history(TimePoint now) const;  // For GET /history.
  const JobHistory& record_of_rounds() const { return history_; }

 private:
  // How much longer than the lease nodes may take to notice that their coordinator is lost.
  static constexpr Duration kReturnMargin{1'000};
  enum class Phase {
    kWaiting,  // Nodes come; no round runs.
    kRunning,
    kRecovering,  // A round of an earlier coordinator goes on; not all its nodes are back.
    kStopping,    // The round's nodes were told to stop, and not all have answered.
    kFinished,
  };
  // A round that is over but still runs on a node, and until when the node must end it.
  struct Ending {
    Round round = kNoRound;
    TimePoint until;
  };
  // A node that is in the job: it has joined and is connected.
  struct Node {
    wire::Join join;
    std::string address;
    ConnectionId connection = 0;
    std::uint64_t order = 0;
    TimePoint heard;  // Last message.
    NodeClock clock{};
    std::list<NodeId>::iterator silence;  // Its place in by_silence_.
    std::int64_t step = -1;
    // For status pages: what its last heartbeat said, and the speed over the last second or more.
    double loss = std::numeric_limits<double>::quiet_NaN();
    std::string loss_is{};  // If it is not finite.
    double samples_per_second = std::numeric_limits<double>::quiet_NaN();
    std::int64_t total_steps = 0;
    std::vector<std::string> waits{};
    struct Pace {
      std::int64_t step = -1;  // The step at which the current measurement began.
      TimePoint since;         // When it began.
      double steps_per_second = std::numeric_limits<double>::quiet_NaN();
      std::int64_t newest = -1;                 // The largest step so far.
      std::chrono::duration<double> a_step{0};  // What the last steps took, each; 0: not known.
      TimePoint moved;                          // When the newest step was known here.
    } pace{};
    // Set while a round that is over still runs on this node. Until it has ended that round, it
    // cannot take part in another one.
    std::optional<Ending> ending{};
  };
  // A node's part in the current round, or in the last one while none runs.
  struct Member {
    enum class Presence { kIn, kAwaited, kLost, kLeft };
    wire::Member info;
    int node_rank = -1;  // As its node asks for it.
    Presence presence = Presence::kIn;
    TimePoint gone_since{};  // If it is lost.
    bool succeeded = false;
    bool reports_progress = false;
    std::vector<std::string> operations;  // What its workers were waiting for.
  };
  // The wait for the other nodes of an adopted round, in kRecovering. Assigned when the round is
  // adopted.
  struct Recovery {
    std::set<std::size_t> awaited = {};  // Members that are not back yet.
    TimePoint until = {};                // Then they are lost.
  };
  // The way of new nodes into a running round: its members commit first. Assigned when members are
  // told to commit; gone when all have committed, at the limit, or when the round is stopped.
  struct ScaleUp {
    TimePoint until;
    std::string reason;  // What members are told.
    NodeId instead_of;  // A spare comes in for this late node; empty: there is room for more nodes.
    std::set<std::size_t> uncommitted = {};  // Members that have not committed yet.
  };
  // The stop of a round, in kStopping. Assigned when the round is stopped.
  struct Stop {
    std::string reason = {};
    bool is_failure = false;  // Why the round is being stopped.
    bool keeps_workers = true;
    TimePoint deadline = {};                // A node that has not answered then is lost.
    std::set<std::size_t> unanswered = {};  // Members that have not answered.
  };
  // A round: the current one, or the last one while none runs. Ranks are group ranks. Only
  // begin_round() begins one, and it assigns the whole.
  struct RoundState {
    Round number = kNoRound;           // kNoRound: this coordinator has begun or adopted none.
    std::vector<Member> members = {};  // By group rank.
    std::unordered_map<NodeId, std::size_t> rank_of_node = {};
    int world_size = 0;
    TimePoint began = {};
    bool is_adopted = false;          // An earlier coordinator began it.
    bool is_restart = false;          // It began with a restart that was charged.
    std::int64_t best_at_start = -1;  // Budget::best_step when it began.
    std::int64_t step = -1;           // The largest step that its workers have reported.
    bool reports_steps = false;       // Its workers report progress.
    std::size_t successes = 0;        // Members that have succeeded.
    int succeeded_workers = 0;        // The workers of those members.
    FailureOrder failures = {};
    // Until when the round goes on although a worker has failed. Set while all failures are
    // secondary.
    std::optional<TimePoint> cause_deadline = {};
    Recovery recovery = {};
    std::optional<ScaleUp> scale_up = {};
    Stop stop = {};
    bool lacks_substitute = false;  // It was told that no spare can replace a late node.
    std::string leave_reason = {};  // Why a member left during the round; empty if none did.
  };
  // What the job has spent on restarts, and what they have brought. Never begins anew: an earlier
  // coordinator's part comes from its record and from joins.
  struct Budget {
    // Restarts that a lost coordinator had charged, as joins report them, and those that this one
    // has charged.
    int inherited = 0;
    int own = 0;
    std::int64_t best_step = -1;  // The largest step that was ever reported.
    int no_progress = 0;          // Restarts in a row without a step beyond best_step.
    int restarts_in_row = 0;      // Restarts since a round last made progress; for the back-off.
    int stepless_in_row = 0;      // Restarts in a row whose workers made no step at all.

    int restarts() const { return inherited + own; }
  };
  // What is known of an earlier coordinator of this job, from its record or from joins. Its loss is
  // charged once in the life of this one.
  struct Earlier {
    bool began_rounds = false;
    bool loss_to_charge = false;  // It was lost and its round did not go on.
    bool loss_is_charged = false;
  };
  // Why and when the next round begins. Assigned when it is decided that there will be one.
  struct NextStart {
    std::string reason;
    bool is_charged = false;  // Whether that reason cost a restart.
    TimePoint not_before;
  };
  // The wait for enough nodes, in kWaiting. Assigned when the wait begins.
  struct Gathering {
    TimePoint since = {};
    // Set while rules_.min_nodes or more are in.
    std::optional<TimePoint> last_call_ends = {};
  };
  // A join that asks for the place of a node that may be gone.
  struct HeldJoin {
    ConnectionId from = 0;
    wire::Join join;
    std::string peer_address;
    TimePoint until;
  };

  void handle(const NodeId& from, const wire::Join& message);
  void handle(const NodeId& from, const wire::Heartbeat& message);
  // AgentFront takes these.
  void handle(const NodeId& /*from*/, const wire::Output& /*message*/) {}
  void handle(const NodeId& /*from*/, const wire::TraceEvents& /*message*/) {}
  void handle(const NodeId& from, const wire::WorkerFailed& message);
  void handle(const NodeId& from, const wire::Succeeded& message);
  void handle(const NodeId& from, const wire::NodeCommitted& message);
  void handle(const NodeId& from, const wire::Stopped& message);
  void handle(const NodeId& from, const wire::Leave& message);

  // ---- job_joining.cc ----
  // Why a join is not accepted; empty if it is.
  std::string objection(const wire::Join& join) const;
  std::string other_holder(const wire::Join& join) const;
  bool hold_for_silent(ConnectionId from, const wire::Join& join, std::string_view peer_address);
  void release_held();
  void refuse(ConnectionId to, const std::string& message);
  bool runs_another_program(const wire::Join& join) const;
  void add_node(ConnectionId from, const wire::Join& join, std::string_view peer_address);
  bool take_over(ConnectionId from, const wire::Join& join);
  void take_numbers(const wire::Join& join);
  void place(const NodeId& node_id);
  void order_end_of(Round round, const NodeId& node_id);
  void ended(const NodeId& node_id);

  // ---- job_leaving_out.cc ----
  bool shares_its_host(const NodeId& node_id, const std::string& host) const;
  void charge_node(const wire::Failure& cause);
  std::string too_many_failures(const wire::Join& join) const;
  static std::string unhealthy(const wire::Join& join);
  std::string dispensable(const wire::Join& join) const;
  void refuse_unfit(ConnectionId to, const std::string& host, const std::string& reason);
  void readmit(const std::string& host);
  void leave_out_failing();
  std::string left_out_text() const;
  std::string turned_away_text() const;

  // ---- job_recovering.cc ----
  bool is_world(const wire::Join& join) const;
  bool returns_to_round(const wire::Join& join);
  void adopt(const NodeId& node_id);
  void end_meeting();
  void come_back(const NodeId& node_id);
  void miss(const std::vector<NodeId>& node_ids, const std::string& why);
  std::optional<Silence> silence_of(const Member& member) const;
  TimePoint recovery_deadline() const;
  void miss_overdue();
  void check_recovered();

  // ---- job_scale_up.cc ----
  void welcome_newcomer(const NodeId& node_id);
  void begin_scale_up(std::string reason = "a node joins", NodeId instead_of = {});
  void check_scale_up();
  bool has_room() const;
  std::vector<const Node*> newcomers() const;

  // ---- job_stragglers.cc ----
  const Member& member_with(Rank rank) const;  // The round has that rank.
  std::string rank_text(Rank rank) const;
  void note_computed(const Member& member, const wire::Heartbeat& message);
  void tell_changes(const Lateness::Changes& changes);
  void notify(const std::string& text);
  void remember_late(const Lateness::Late& late);
  // The round ends.
  void close_lateness();
  std::string lateness_text() const;
  bool is_excluded(const NodeId& node_id) const;
  const Node* substitute() const;
  void exclude_straggler();
  void replace_straggler(const ScaleUp& change);

  // ---- job.cc ----
  void note_saved(const std::vector<wire::SavedShare>& shares);
  void measure_pace(Node& node) const;
  // Whether no step has come for so long that what its workers have told of their speed is over.
  bool stands_still(const Node& node) const;
  // The nodes' connections are gone, or are treated as gone. `silent`: for how long they have been
  // silent.
  void lose(const std::vector<NodeId>& node_ids, const std::string& kind, const std::string& why,
            Duration silent = Duration{0});
  // Returns why the round ends by this loss; empty if it does not.
  std::string take_out(const NodeId& node_id, wire::Failure loss, Duration silent);
  void remove_node(const NodeId& node_id);
  // `told`: when the failure was told, or seen here.
  void record(wire::Failure failure, const Member& member, TimePoint told);
  // The root cause of the round's failures, as far as is known by now. The round must have
  // failures.
  const wire::Failure& root() const;
  // Ends a running round that has failures. While all of them are secondary, it first waits for
  // their cause, as long as that can still be reported.
  void stop_for_failures();
  // Whether a worker still runs that may have caused the failures so far.
  bool cause_may_come() const;
  void begin_stop(const std::string& reason, bool is_failure);
  void check_stopped();
  void check_all_succeeded();
  void finish(int exit_code, const std::string& summary, const std::string& report,
              const std::string& error = "");
  void persist();
  std::string round_report(bool permanent) const;

  // ---- job_restarts.cc ----
  void note_progress(Member& member, std::int64_t step, bool reports_progress);
  bool keeps_workers() const;
  bool round_is_stepless() const;
  void decide_after_stop();
  bool others_are_enough(const wire::Failure& stuck) const;
  std::optional<std::string> why_not_restarted(const wire::Failure& root) const;
  void restart_for(const wire::Failure& root);
  bool charge_lost_coordinator();

  // ---- job_waiting.cc ----
  void wait_for_nodes();
  void try_start();
  Duration longest_wait() const;
  void start_round();
  void begin_round(Round number, std::vector<Member> members);
  std::vector<Rank> lost_ranks() const;
  void send_spares(const std::vector<const Node*>& nodes, const std::string& text);
  std::string spare_text() const;
  bool all_previous_are_in() const;
  void announce();
  void finish_for_missing_nodes();

  // ---- job_status.cc ----
  std::string node_state(const NodeId& node_id, const Member* member) const;
  NodeStatus node_status(TimePoint now, const NodeId& node_id, const Member* member) const;
  std::string waits_for(TimePoint now) const;

  // ---- job_time.cc ----
  void lose_silent_nodes();
  void lose_slow_nodes();

  Member* member_of(const NodeId& node_id);
  const Member* member_of(const NodeId& node_id) const;
  std::size_t rank_of(const Member& member) const {
    return static_cast<std::size_t>(&member - round_.members.data());
  }
  // The member if it takes part in `round` and that round is not over; otherwise null.
  Member* current_member(const NodeId& node_id, Round round);
  Duration lease() const { return Duration{rules_.lease_ms}; }
  Duration heartbeat() const { return std::min(options_.heartbeat, lease() / 5); }
  Duration return_limit() const { return options_.return_limit.value_or(lease() + kReturnMargin); }
  bool is_running() const { return phase_ == Phase::kRunning || phase_ == Phase::kRecovering; }
  // The number of nodes with which a round can begin.
  int available() const { return static_cast<int>(nodes_.size()) - num_ending_; }
  std::vector<std::string> hosts() const;
  std::string missing_detail() const;
  std::string advice_for_first_round() const;
  std::string waiting_text(TimePoint now) const;
  std::string other_jobs_text() const;
  void send(ConnectionId to, const wire::CoordinatorMessage& message);

  const CoreOptions options_;
  const std::function<std::vector<std::string>()> waiting_jobs_;
  const std::string id_;
  const config::JobRules rules_;
  const std::string rules_host_;  // The node that came first and set the rules.
  const Duration stop_timeout_;   // A node that takes longer to stop counts as lost.

  TimePoint now_;                       // Of the current call.
  std::vector<Action>* out_ = nullptr;  // Of the current call.

  Phase phase_ = Phase::kWaiting;
  std::map<NodeId, Node> nodes_;
  std::map<ConnectionId, NodeId> node_of_;
  std::map<int, NodeId> rank_holder_;  // Which node has each node rank that was asked for.
  std::list<NodeId> by_silence_;       // Nodes by their last message, oldest first.
  int num_ending_ = 0;                 // Nodes with `ending` set.
  std::vector<HeldJoin> held_;
  std::set<NodeId> known_;  // Every node that has ever joined.
  std::uint64_t joins_ = 0;
  bool any_left_ = false;
  std::string program_;  // The program's name, from the first node that gives one.
  std::string role_;     // That node's.

  Budget budget_;
  NodeFailures node_failures_;
  std::vector<LeftOut> left_out_;  // For people; oldest first.
  std::optional<LeftOut>
      refused_;  // For people: why the last one was not let in while nodes are missing.
  Earlier earlier_;
  Round next_round_ = 0;  // The first number that no round has used.
  NextStart next_start_;
  Gathering gathering_;
  RoundState round_;
  // The root cause of the last round that failed before round_, and that round.
  std::optional<std::pair<Round, wire::Failure>> last_failure_;
  std::uint64_t failures_reported_ = 0;       // In all rounds.
  Lateness lateness_;                         // Of round_.
  std::map<std::string, Duration> was_late_;  // How long ranks were late, in earlier rounds, too.
  std::map<NodeId, TimePoint> excluded_;      // When a spare has taken a late node's place.

  TimePoint next_announcement_;
  TimePoint last_announcement_;
  wire::Finish result_;
  TimePoint finished_at_;  // With result_.
  JobHistory history_;
};

}  // namespace ddp::rendezvous
