#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/net/frame_connection.h"
#include "common/net/stream_mux.h"
#include "common/net/timer.h"
#include "launcher/rendezvous/rendezvous_core.h"
#include "launcher/server/refusals.h"

namespace ddp::server {

// The agents' connections: passes their frames and the time to RendezvousCore and carries out its
// actions. On the thread of `io`.
class AgentFront {
 public:
  struct Hooks {
    // A round is about to begin; no agent has been told yet.
    std::function<void(const std::string& job_id)> round_begins;
    // Called from the event loop, never from inside another call.
    std::function<void(const std::string& job_id, const wire::Finish&)> job_finished;
    // An agent was refused. May be empty.
    std::function<void(RefusalReason why, const std::string& remote)> refused{};
    // A worker's connection to the store, which came through its agent.
    std::function<void(const std::shared_ptr<net::Stream>& stream)> store_client{};
    // What the workers of a node do. May be empty.
    std::function<void(rendezvous::ConnectionId from, const wire::TraceEvents& events)> traced{};
  };

  // For jobs that any of their ddp-runs may coordinate (launcher/replicas). All are called from the
  // event loop; frame(), joined() and gone() never from inside another call.
  struct ReplicaHooks {
    // The frame came from another ddp-run of the job; false: it is nothing that one says.
    std::function<bool(const std::string& payload)> frame;
    // An agent joins whose ddp-run can take over, and is reached there.
    std::function<void(const wire::Join& join, const HostPort& at)> joined;
    // Its last connection is gone. `left`: it had said that it leaves.
    std::function<void(const NodeId& node_id, bool left)> gone;
    // Where the coordinator is, if it is not here.
    std::function<std::optional<HostPort>()> coordinator;
    // As rendezvous::CoreOptions::silence_of().
    std::function<std::optional<rendezvous::Silence>(const NodeId& node_id)> silence_of;
  };

  // Stores a job's record, if another coordinator may take over. Both functions call back from the
  // event loop, on the thread of `io`. If they never call back, no later action is carried out.
  struct RecordKeeper {
    // Stores the record.
    std::function<void(const rendezvous::JobRecord& record, std::function<void()> stored)> store;
    // Makes sure that this process is still the coordinator.
    std::function<void(std::function<void()> confirmed)> confirm;
  };

  // `port` is put into round_start messages that do not name the store's port. `has_token`: only
  // agents that know a token are adopted.
  AgentFront(asio::io_context& io, int port, bool has_token, Hooks hooks);
  ~AgentFront();  // Closes every connection.
  AgentFront(const AgentFront&) = delete;
  AgentFront& operator=(const AgentFront&) = delete;

  // From now on, no agent is told of a round or of the job's end before the record is stored. And a
  // coordinator that was replaced, and only sees that its agents are gone, cannot stop a round.
  void keep_records(RecordKeeper keeper);
  // Takes the record of an earlier coordinator of the job. Call it before any agent joins.
  void restore(const rendezvous::JobRecord& record, std::optional<rendezvous::JobHistory> history);
  // The workers of each round get a key for their connections between nodes.
  void guard_links() { guards_links_ = true; }
  void set_replica_hooks(ReplicaHooks hooks) { replica_hooks_ = std::move(hooks); }
  // Another ddp-run coordinates the job: forgets the job, lets go of its agents, and tells those
  // that come where the coordinator is. Until keep_records().
  void stand_by();

  // Takes a connection whose preambles are exchanged; `received` are the bytes after the agent's
  // preamble. `job_id`: the only job that the agent may join, if it has proved that it belongs to
  // one.
  void adopt(const std::shared_ptr<net::ByteStream>& stream, std::string_view received,
             std::optional<std::string> job_id = std::nullopt);
  void end_job(const std::string& job_id, int exit_code, const std::string& reason);
  // Calls back from the event loop when no agent is connected any more, or when `limit` has passed.
  void drain(std::chrono::milliseconds limit, std::function<void()> done);
  // The node leaves, and this daemon with it. Calls back from the event loop when the consequences
  // for the others are stored and sent, or when `limit` has passed.
  void leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
             std::chrono::milliseconds limit, std::function<void()> done);

  // Asks the agent of this rank for the last lines of its worker. Calls back from the event loop
  // when they are there, and with nothing if there is no such rank or its agent is lost meanwhile.
  using OutputCallback = std::function<void(std::optional<wire::Output> output)>;
  void ask_output(const std::string& job_id, Rank rank, OutputCallback done);
  // For TraceFeed.
  std::vector<rendezvous::ConnectionId> agents_of(const std::string& job_id) const {
    return core_->agents_of(job_id);
  }
  void ask_trace(rendezvous::ConnectionId agent, const wire::ReadTrace& question);
  const rendezvous::JobHistory* history_of(const std::string& job_id) const {
    return core_->history_of(job_id);
  }
  std::string failure_text(const std::string& job_id) const { return core_->failure_text(job_id); }
  // Where the coordinator is, if this daemon stands by and knows it.
  std::optional<HostPort> coordinator_elsewhere() const;

  std::vector<rendezvous::JobStatus> status() const;
  // Of these jobs; of all if there are none.
  nlohmann::json history(const std::set<std::string>& job_ids) const;
  std::size_t num_agents() const { return agents_.size(); }
  // Connections that carry the store traffic of a node's workers.
  std::size_t num_store_links() const { return store_links_.size(); }
  std::size_t num_running_jobs() const { return running_jobs_.size(); }
  std::uint64_t num_finished_jobs() const { return finished_jobs_; }
  std::uint64_t num_rounds() const { return rounds_; }

 private:
  struct Agent {
    std::shared_ptr<net::FrameConnection> connection;
    std::string remote;  // ADDRESS:PORT
    std::optional<std::string> job_id;
    bool is_here = false;  // On this machine.
    NodeId replica{};      // Its node, if that can take over.
    bool has_left = false;
  };

  bool may_send(Agent& agent, const wire::AgentMessage& message);
  void on_frame(std::uint64_t id, const std::string& payload);
  bool take_replica_frame(std::uint64_t id, const std::string& payload);
  bool pass_to_store(std::uint64_t id, const std::string& payload);
  void take_output(std::uint64_t from, const wire::Output& output);
  void redirect(Agent& agent);
  void note_replica(Agent& agent, const wire::AgentMessage& message, const std::string& address);
  void forget_replica(const Agent& agent);
  void on_closed(std::uint64_t id, const Error& why);
  void apply(std::vector<rendezvous::Action> actions);
  void perform_waiting();
  bool must_be_confirmed(const rendezvous::Action& action) const;
  // The callback for the keeper. It does nothing once this object is gone.
  std::function<void()> go_on(bool confirmed);
  void perform(rendezvous::SendTo& action);
  void perform(const rendezvous::CloseConnection& action);
  void perform(const rendezvous::RoundBegins& action);
  void perform(const rendezvous::JobFinished& action);
  void perform(const rendezvous::Persist& action);
  void arm_timer();
  void ping();
  void drained();
  void check_left();

  asio::io_context& io_;
  int port_;
  bool has_token_;
  Hooks hooks_;
  ReplicaHooks replica_hooks_;
  std::unique_ptr<rendezvous::RendezvousCore> core_;
  RecordKeeper keeper_;
  bool stands_by_ = false;
  bool guards_links_ = false;
  std::string link_nonce_;                  // Of the round that begins.
  std::deque<rendezvous::Action> waiting_;  // Wait, in order, until a record is stored.
  bool storing_ = false;                    // The keeper has not called back yet.
  bool confirmed_ = false;                  // The keeper has confirmed the first waiting action.
  std::unordered_map<std::uint64_t, Agent> agents_;
  std::unordered_map<std::uint64_t, std::shared_ptr<net::FrameConnection>> replicas_;
  std::unordered_map<std::uint64_t, std::unique_ptr<net::StreamMux>> store_links_;
  struct OutputRequest {
    std::uint64_t agent = 0;
    TimePoint asked;
    OutputCallback done;
  };
  std::unordered_map<std::uint64_t, OutputRequest> output_requests_;  // Not answered yet.
  net::Timer tick_;
  net::Timer ping_;
  net::Timer drain_limit_;
  std::function<void()> drain_done_;
  bool leaving_ = false;  // drain_done_ waits for the actions, not for the agents.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For what is posted.
  std::uint64_t next_id_ = 1;
  std::set<std::string> running_jobs_;
  std::uint64_t finished_jobs_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace ddp::server
