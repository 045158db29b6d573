#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/rendezvous_core.h"

namespace ddp::rendezvous {

// One job of the coordinator: who is in, which round runs, what has failed, what is left of the
// restart budget. README.md beside this file has the states and the rules. RendezvousCore owns it
// and appends the actions of every call to `out`.
class Job {
 public:
  // `first` decides what later joins must agree with; it still has to join.
  Job(const CoreOptions& options, TimePoint now, const wire::Join& first);

  void join(TimePoint now, ConnectionId from, const wire::Join& join, std::string_view peer_address,
            std::vector<Action>& out);
  // Of a connection that has joined this job; Join is not among them.
  void message(TimePoint now, ConnectionId from, const wire::AgentMessage& message,
               std::vector<Action>& out);
  void disconnect(TimePoint now, ConnectionId from, std::vector<Action>& out);
  void tick(TimePoint now, std::vector<Action>& out);
  void end(TimePoint now, int exit_code, const std::string& reason, std::vector<Action>& out);

  std::optional<TimePoint> next_deadline() const;
  bool finished() const { return phase_ == Phase::kFinished; }
  // Every node has left; nobody can come back, so the record can go.
  bool abandoned() const;
  nlohmann::json status(TimePoint now) const;

 private:
  enum class Phase {
    kWaiting,  // Nodes come; no round runs.
    kRunning,
    kStopping,  // The round's nodes were told to stop and have not all answered.
    kFinished,
  };
  // A node that is in: its connection stands.
  struct Node {
    wire::Join join;
    std::string address;
    ConnectionId connection = 0;
    std::uint64_t order = 0;
    TimePoint heard;  // Last message.
    std::int64_t step = -1;
  };
  // A node's part in the current round, or in the last one while none runs.
  struct Member {
    enum class Presence { kIn, kLost, kLeft };
    wire::Member info;
    Presence presence = Presence::kIn;
    bool succeeded = false;
    bool stopped = false;
    std::vector<std::string> operations;  // What its workers were waiting for.
  };

  void handle(const NodeId& from, const wire::Join& message);
  void handle(const NodeId& from, const wire::Heartbeat& message);
  void handle(const NodeId& from, const wire::WorkerFailed& message);
  void handle(const NodeId& from, const wire::Succeeded& message);
  void handle(const NodeId& from, const wire::NodeCommitted& message);
  void handle(const NodeId& from, const wire::Stopped& message);
  void handle(const NodeId& from, const wire::Leave& message);

  // Why a join is not accepted; empty if it is.
  std::string objection(const wire::Join& join) const;
  void refuse(ConnectionId to, const std::string& message);
  void add_node(ConnectionId from, const wire::Join& join, std::string_view peer_address);
  void take_numbers(const wire::Join& join);
  void welcome_into_running_round(const NodeId& node_id);

  // The node's connection is gone, or counts as such.
  void lose(const NodeId& node_id, const std::string& kind, const std::string& why);
  void remove_node(const NodeId& node_id);
  void record(wire::Failure failure, const Member& member);
  // Ends a running round that has failures; while all are secondary, only once their cause cannot
  // come any more.
  void stop_for_failures();
  // Whether a worker has not ended that the failures so far may follow from.
  bool cause_may_come() const;
  void begin_stop(const std::string& reason, bool is_failure);
  void check_stopped();
  void decide_after_stop();
  void check_all_succeeded();

  void wait_for_nodes();
  void try_start();
  void start_round();
  void send_spare(const Node& node);
  bool all_previous_are_in() const;
  void announce();
  void finish_for_missing_nodes();
  void finish(int exit_code, const std::string& summary, const std::string& report);

  Member* member_of(const NodeId& node_id);
  // The member if it takes part in `round` and the round is not over; else null.
  Member* current_member(const NodeId& node_id, Round round);
  int restarts() const { return inherited_restarts_ + own_restarts_; }
  std::vector<std::string> hosts() const;
  std::string missing_detail() const;
  std::string waiting_text(TimePoint now) const;
  std::string round_report(bool permanent) const;
  void send(ConnectionId to, const wire::CoordinatorMessage& message);

  const CoreOptions options_;
  const std::string id_;
  const int min_nodes_;
  const int max_nodes_;
  const int max_restarts_;
  const Duration join_timeout_;
  const Duration last_call_;
  const Duration stop_timeout_;

  TimePoint now_;                       // Of the call that is being served.
  std::vector<Action>* out_ = nullptr;  // Likewise.

  Phase phase_ = Phase::kWaiting;
  std::map<NodeId, Node> nodes_;
  std::map<ConnectionId, NodeId> node_of_;
  std::set<NodeId> known_;  // Every node that ever was in.
  std::uint64_t joins_ = 0;
  bool any_left_ = false;

  // Restarts that joins know of from a lost coordinator, and those charged by this one.
  int inherited_restarts_ = 0;
  int own_restarts_ = 0;
  bool coordinator_loss_charged_ = false;
  Round next_round_ = 0;
  std::string reason_ = "first round";  // For the next RoundStart.
  bool reason_is_charged_ = false;      // Whether that reason cost a restart.

  Round round_ = kNoRound;
  int world_size_ = 0;
  std::vector<Member> members_;          // By group rank.
  std::vector<wire::Failure> failures_;  // Of round_, in order of arrival.
  // Until when the round goes on although a worker has failed; set once all its failures are
  // secondary.
  std::optional<TimePoint> cause_deadline_;
  bool stop_is_failure_ = false;  // Why the round is being stopped.
  std::string stop_reason_;
  std::string leave_reason_;  // Of a member that left during the round; empty if none did.
  TimePoint stop_deadline_;

  TimePoint waiting_since_;
  std::optional<TimePoint>
      last_call_ends_;  // Set while min_nodes_ or more are in and no round runs.
  TimePoint next_announcement_;
  wire::Finish result_;
};

}  // namespace ddp::rendezvous
