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

#include "common/net/frame_connection.h"
#include "common/net/timer.h"
#include "launcher/rendezvous/rendezvous_core.h"
#include "launcher/server/node_addresses.h"
#include "launcher/server/refusals.h"

namespace ddp::server {

// The agents' connections: frames and time into RendezvousCore, its actions out. On the thread of
// `io`.
class AgentFront {
 public:
  struct Hooks {
    // A round begins; nobody has been told yet.
    std::function<void(const std::string& job_id)> round_begins;
    // Called from the event loop, never from inside another call.
    std::function<void(const std::string& job_id, const wire::Finish&)> job_finished;
    // An agent is sent away. May be empty.
    std::function<void(RefusalReason why, const std::string& remote)> refused{};
  };

  // Who keeps a job's record, where another coordinator may take its place. Both call back from the
  // event loop, on the thread of `io`, or never, and then nothing of what follows is done.
  struct RecordKeeper {
    // Stores it.
    std::function<void(const rendezvous::JobRecord& record, std::function<void()> stored)> store;
    // Makes sure that this is the coordinator still.
    std::function<void(std::function<void()> confirmed)> confirm;
  };

  // `port` is put into the round_start messages that leave the store's port open.
  AgentFront(asio::io_context& io, int port, Hooks hooks);
  ~AgentFront();  // Closes every connection.
  AgentFront(const AgentFront&) = delete;
  AgentFront& operator=(const AgentFront&) = delete;

  // From now on nobody is told of a round or of the job's end before its record is kept, nor to
  // stop a round by a coordinator that was replaced and only sees that its agents have gone.
  void keep_records(RecordKeeper keeper) { keeper_ = std::move(keeper); }
  // What an earlier coordinator of the job has left. Before anybody joins.
  void restore(const rendezvous::JobRecord& record);

  // A connection whose preambles are exchanged; `received` follows the agent's. `job_id`: the only
  // job that it may join, where it has proved that it belongs to one.
  void adopt(const std::shared_ptr<net::ByteStream>& stream, std::string_view received,
             std::optional<std::string> job_id = std::nullopt);
  void end_job(const std::string& job_id, int exit_code, const std::string& reason);
  // Calls back, from the event loop, when no agent is connected or `limit` has passed.
  void drain(std::chrono::milliseconds limit, std::function<void()> done);
  // The node leaves, and this daemon goes with it: calls back, from the event loop, when all that
  // follows from it for the others has been stored and sent, or `limit` has passed.
  void leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
             std::chrono::milliseconds limit, std::function<void()> done);

  std::vector<rendezvous::JobStatus> status() const;
  // Whether an agent is, or was a moment ago, connected from this numeric address, or said that its
  // node is reached there.
  bool is_node(const std::string& address) const { return nodes_.contains(address, Clock::now()); }
  std::size_t num_agents() const { return agents_.size(); }
  std::size_t num_running_jobs() const { return running_jobs_.size(); }
  std::uint64_t num_finished_jobs() const { return finished_jobs_; }
  std::uint64_t num_rounds() const { return rounds_; }

 private:
  struct Agent {
    std::shared_ptr<net::FrameConnection> connection;
    std::string remote;  // ADDRESS:PORT
    std::optional<std::string> job_id;
    std::vector<std::string> addresses;  // Of nodes_.
  };

  bool may_send(Agent& agent, const wire::AgentMessage& message);
  void on_frame(std::uint64_t id, const std::string& payload);
  void on_closed(std::uint64_t id, const Error& why);
  void apply(std::vector<rendezvous::Action> actions);
  void perform_waiting();
  bool must_be_confirmed(const rendezvous::Action& action) const;
  // For the keeper to call back; does nothing once this object is gone.
  std::function<void()> go_on(bool confirmed);
  void perform(rendezvous::SendTo& action);
  void perform(const rendezvous::CloseConnection& action);
  void perform(const rendezvous::RoundBegins& action);
  void perform(const rendezvous::JobFinished& action);
  void perform(const rendezvous::Persist& action);
  void arm_timer();
  void drained();
  void check_left();

  asio::io_context& io_;
  int port_;
  Hooks hooks_;
  rendezvous::RendezvousCore core_;
  RecordKeeper keeper_;
  std::deque<rendezvous::Action> waiting_;  // In order; behind a record that is being stored.
  bool storing_ = false;                    // The keeper has not called back.
  bool confirmed_ = false;                  // What waits was asked for.
  std::unordered_map<std::uint64_t, Agent> agents_;
  NodeAddresses nodes_{Duration(60'000)};
  net::Timer tick_;
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
