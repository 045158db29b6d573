#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/agent_core.h"
#include "launcher/rendezvous/rendezvous_core.h"
#include "tests/sim/checker.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace ddp::sim {

// The real coordinator and agents over a simulated network, with simulated processes and time.
//
// The network is TCP's: what arrives, arrives in order; a connection breaks for each side at a
// moment of its own, and what is under way then is lost. A coordinator that dies loses all it
// knows. A ddp-run starts a successor for an agent that dies, and kills the workers of the dead one
// first.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed, bool verbose = false);
  ~Simulation();

  // Runs to the end. The violated property, or nothing if all held.
  std::optional<std::string> run();
  // Of everything that happened; equal for equal seeds.
  std::uint64_t history() const { return history_; }
  const Scenario& scenario() const { return scenario_; }
  // For statistics over many seeds: how agents exited, and how many rounds there were.
  const std::map<int, int>& exit_codes() const { return exit_codes_; }
  std::size_t rounds() const { return worlds_.size(); }

 private:
  struct Connection {
    rendezvous::ConnectionId id = 0;
    int agent = 0;
    bool agent_open = true;
    bool coordinator_open = true;
    TimePoint last_up;  // When the latest message sent up arrives; later ones do not overtake it.
    TimePoint last_down;
  };
  struct Worker {
    int agent = 0;
    int life = 0;  // As life_ when its round began.
    Round round = 0;
    int local_rank = 0;
    Rank rank = 0;
    int pid = 0;
    bool alive = true;
    bool stubborn = false;  // Ignores SIGTERM.
    bool hangs = false;
    bool succeeded = false;
  };
  struct Agent {
    int id = 0;
    int node = 0;
    std::unique_ptr<agent::AgentCore> core;
    bool alive = true;
    std::optional<rendezvous::ConnectionId> connection;
    int life = 0;                    // As life_ when the latest round_start was sent.
    std::optional<int> finish_code;  // Of the finish that it heard.
    int idle_ticks = 0;              // Ticks in a row that came without time going on.
    TimePoint paused_until;
    std::optional<TimePoint> wake;  // The tick that is scheduled.
  };
  // One ddp-run.
  struct Node {
    config::JobSpec spec;
    bool alive = true;
    int agent = -1;
    bool spawn_fails = false;
    // What the ddp-run knows of the job, for a successor of its agent.
    Round last_round = kNoRound;
    int restarts = 0;
    TimePoint partitioned_until;
  };
  struct World {
    int size = 0;
    std::vector<std::size_t> workers;
    bool broken = false;  // A worker ended badly; the others cannot complete.
  };

  void log(const std::string& line);

  // ---- the coordinator and the network ----
  void start_coordinator();
  void crash_coordinator(Duration outage);
  void feed_coordinator(std::vector<rendezvous::Action> actions);
  void carry_out(const rendezvous::SendTo& action);
  void carry_out(const rendezvous::CloseConnection& action);
  void carry_out(const rendezvous::RoundBegins& action);
  void carry_out(const rendezvous::JobFinished& action);
  void carry_out(const rendezvous::Persist&) {}
  void schedule_coordinator_tick();
  void close_for_coordinator(rendezvous::ConnectionId id, Duration delay);
  void close_for_agent(rendezvous::ConnectionId id, Duration delay);
  void deliver_up(rendezvous::ConnectionId id, const wire::AgentMessage& message);
  void deliver_down(rendezvous::ConnectionId id, int life, const wire::CoordinatorMessage& message);
  void notice_forgotten_job();
  TimePoint arrival(TimePoint after, const Node& node);

  // ---- nodes, agents, workers ----
  int start_node(int node_rank);
  void start_agent(int node);
  // Runs `event` on the agent: later if it is paused, not at all if it is dead.
  void on_agent(int agent, std::function<std::vector<agent::Action>(agent::AgentCore&)> event);
  void feed_agent(int agent, const std::vector<agent::Action>& actions);
  void schedule_agent_tick(int agent);
  void carry_out(int agent, const agent::Connect& action);
  void carry_out(int agent, const agent::Disconnect& action);
  void carry_out(int agent, const agent::SendToCoordinator& action);
  void carry_out(int agent, const agent::SpawnWorkers& action);
  void carry_out(int agent, const agent::SignalWorkers& action);
  void carry_out(int agent, const agent::KillWorkers& action);
  void carry_out(int agent, const agent::ClearRound& action);
  void carry_out(int, const agent::RequestCommit&) {}
  void carry_out(int, const agent::FindHung&) {}
  void carry_out(int, const agent::DumpStacks&) {}
  void carry_out(int, const agent::KillWorker&) {}
  void carry_out(int agent, const agent::Print& action);
  void carry_out(int agent, const agent::Exit& action);
  void drop_connection(int agent);
  void crash_agent(int agent);
  int live_workers(int agent) const;
  void end_worker(std::size_t worker, int exit_code, int signal, bool by_order);
  void peers_suffer(const Worker& dead);
  void complete_world(int life, Round round);

  // ---- faults ----
  void inject(const Fault& fault);
  void hit_worker(const Fault& fault);
  void hit_node(const Fault& fault);
  void end_of_faults();
  std::vector<int> live_agents() const;
  bool all_through() const;
  void check_end();

  const std::uint64_t seed_;
  const bool verbose_;
  const Scenario scenario_;
  Random random_;
  EventQueue queue_;
  Checker checker_;
  std::uint64_t history_ = 14'695'981'039'346'656'037ull;

  std::unique_ptr<rendezvous::RendezvousCore> coordinator_;  // Null while it is down.
  // Counts coordinators, and jobs of one coordinator: a job that all its nodes have left is
  // forgotten, and nodes that come later begin another one of the same name.
  int life_ = 0;
  std::optional<TimePoint> coordinator_wake_;
  std::map<rendezvous::ConnectionId, Connection> connections_;
  rendezvous::ConnectionId next_connection_ = 1;

  std::vector<Node> nodes_;
  std::vector<Agent> agents_;
  std::vector<Worker> workers_;
  std::map<std::pair<int, Round>, World> worlds_;
  int starts_to_come_ = 0;  // Nodes, agents and coordinators that are on their way.
  bool faults_are_over_ = false;
  std::map<int, int> exit_codes_;
  int coordinator_idle_ticks_ = 0;
};

}  // namespace ddp::sim
