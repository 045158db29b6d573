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
#include "launcher/rendezvous/silence.h"
#include "tests/sim/checker.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace ddp::sim {

// The real coordinator and agents over a simulated network, with simulated processes and time.
//
// The network behaves like TCP: bytes arrive in order. Each side sees a broken connection at its
// own moment, and what is in flight then is lost. A coordinator that dies loses all its state. If
// an agent dies, its ddp-run kills its workers and then starts a new agent.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed, bool verbose = false);
  Simulation(Scenario scenario, std::uint64_t seed, bool verbose);
  ~Simulation();

  // Runs to the end. The violated property, or nothing if all held.
  std::optional<std::string> run();
  // Of everything that happened; equal for equal seeds.
  std::uint64_t history() const { return history_; }
  const Scenario& scenario() const { return scenario_; }
  // For statistics over many seeds: how agents exited, and how many rounds there were.
  const std::map<int, int>& exit_codes() const { return exit_codes_; }
  std::size_t rounds() const { return worlds_.size(); }
  const std::map<std::string, int>& events() const { return events_; }

  // ---- for measurements of large jobs ----
  void begin() { start_coordinator(); }
  int start_node(int node_rank, const std::string& host = "");
  void start_nodes(int count, Duration within);
  void kill_node(int node);
  // Runs until as many workers are in a round `round` or a later one, or the time is over.
  bool run_until_in_round(Round round, int workers, Duration limit);
  void run_for(Duration time);
  const std::optional<std::string>& violation() const { return checker_.violation(); }
  TimePoint now() const { return queue_.now(); }
  std::size_t messages() const { return messages_; }  // Without heartbeats.
  std::size_t heartbeats() const { return heartbeats_; }

 private:
  struct Connection {
    rendezvous::ConnectionId id = 0;
    int agent = 0;
    bool agent_open = true;
    bool coordinator_open = true;
    TimePoint last_up;  // When the latest message sent up arrives; later ones do not overtake it.
    TimePoint last_down;
  };
  using WorldKey = std::pair<int, Round>;  // As life_ when it began.
  struct Worker {
    int agent = 0;
    WorldKey world;
    int local_rank = 0;
    Rank rank = 0;
    int pid = 0;
    bool alive = true;
    bool stubborn = false;  // Ignores SIGTERM.
    bool hangs = false;
    bool reports = false;  // Says hello and reports progress.
    bool reconfigurable = false;
    bool parked = false;
    bool replaced = false;     // It ended while it was parked, and another one has its place.
    double computed_ms = 0;    // As it tells.
    std::int64_t commit = -1;  // The last step it has committed,
    WorldKey committed_in;     // and in which world.
  };
  struct Agent {
    int id = 0;
    int node = 0;
    std::unique_ptr<agent::AgentCore> core;
    bool alive = true;
    bool parent_lost = false;
    std::optional<rendezvous::ConnectionId> connection;
    int life = 0;                      // As life_ when the latest round_start was sent.
    std::optional<int> finish_code;    // Of the finish that it heard.
    int idle_ticks = 0;                // Ticks in a row that came without time going on.
    std::vector<std::size_t> workers;  // All that it ever started.
    TimePoint paused_until;
    std::optional<TimePoint> wake;  // The tick that is scheduled.
  };
  // One ddp-run.
  struct Node {
    config::JobSpec spec;
    bool alive = true;
    int agent = -1;
    std::vector<int> agents;  // All that it ever had.
    bool spawn_fails = false;
    // What the ddp-run knows of the job, for a successor of its agent.
    Round last_round = kNoRound;
    int restarts = 0;
    TimePoint partitioned_until;
  };
  struct World {
    int size = 0;
    std::vector<std::size_t> workers;  // Some may be in a later one by now.
    bool broken = false;               // A worker ended badly; the others cannot complete.
    std::int64_t step = -1;
  };

  void log(const std::string& line);

  // ---- the coordinator and the network ----
  void start_coordinator();
  void crash_coordinator(Duration outage);
  void lose_predecessor();
  void feed_coordinator(std::vector<rendezvous::Action> actions);
  void carry_out(const rendezvous::SendTo& action);
  void carry_out(const rendezvous::CloseConnection& action);
  void carry_out(const rendezvous::RoundBegins& action);
  void carry_out(const rendezvous::JobFinished& action);
  void carry_out(const rendezvous::Persist& action);
  void schedule_coordinator_tick();
  void close_for_coordinator(rendezvous::ConnectionId id, Duration delay);
  void close_for_agent(rendezvous::ConnectionId id, Duration delay);
  void deliver_up(rendezvous::ConnectionId id, const wire::AgentMessage& message);
  void deliver_down(rendezvous::ConnectionId id, int life, const wire::CoordinatorMessage& message);
  void notice_forgotten_job();
  TimePoint arrival(TimePoint after, const Node& node);

  // ---- nodes, agents, workers ----
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
  void carry_out(int agent, const agent::RequestCommit& action);
  void carry_out(int, const agent::RequestCheckpoint&) {}  // Nobody asks: no signal, no time limit.
  void carry_out(int agent, const agent::FindHung& action);
  void carry_out(int agent, const agent::DumpStacks& action);
  void carry_out(int agent, const agent::KillWorker& action);
  void carry_out(int agent, const agent::Print& action);
  void carry_out(int agent, const agent::Exit& action);
  void drop_connection(int agent);
  void crash_agent(int agent);
  // Those that are not parked.
  int live_workers(int agent) const;
  // ---- processes (simulation_workers.cc) ----
  void start_worker(int agent, int local_rank, Rank rank, WorldKey world);
  void hand_over(std::size_t worker, Rank rank, WorldKey world);
  void say_hello(std::size_t worker, Duration delay);
  void abort_worker(std::size_t worker);
  void park_worker(std::size_t worker, WorldKey world);
  void end_worker(std::size_t worker, int exit_code, int signal, bool by_order);
  void peers_suffer(WorldKey world);
  bool takes_part(std::size_t worker, WorldKey world) const;
  void meet(WorldKey world);
  void begin_training(WorldKey world);
  void train(WorldKey world);
  void make_step(WorldKey key);
  double compute_ms(const Worker& worker) const;

  // ---- faults ----
  void inject(const Fault& fault);
  void hit_worker(const Fault& fault);
  void hit_node(const Fault& fault);
  void kill_ddp_run(int agent, Duration length);
  void lose_silently(int agent);
  void send_user_signal(int agent, std::int64_t choice);
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
  std::map<WorldKey, World> worlds_;
  std::optional<rendezvous::JobRecord> record_;
  struct Predecessor {
    NodeId node_id;
    rendezvous::Silence silence;
  };
  std::optional<Predecessor> predecessor_;     // What the next coordinator knows of the last one.
  std::int64_t saved_step_ = -1;               // The newest checkpoint on disk.
  std::map<WorldKey, std::int64_t> all_have_;  // The last step that all workers had committed.
  int starts_to_come_ = 0;  // Nodes, agents and coordinators that are on their way.
  bool faults_are_over_ = false;
  std::map<int, int> exit_codes_;
  int coordinator_idle_ticks_ = 0;
  std::map<std::string, int> events_;  // How often what happened, of things that must happen.
  std::map<Round, int> in_round_;      // Workers that were told of a round.
  std::size_t messages_ = 0;
  std::size_t heartbeats_ = 0;
};

}  // namespace ddp::sim
