#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/replicas/job_replica.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"

namespace ddp::sim {

// How often things that must happen have happened, over many seeds.
struct ReplicasCoverage {
  std::uint64_t rounds = 0;
  std::uint64_t take_overs = 0;
  std::uint64_t crashes = 0;
  std::uint64_t resets = 0;
  std::uint64_t new_jobs = 0;       // Most voters were lost at once.
  std::uint64_t yields = 0;         // A ddp-run took itself for the first and was not.
  std::uint64_t failed_stores = 0;  // The leadership was lost meanwhile.
  std::uint64_t slowest_ms = 0;     // From the crash of the coordinator to the next one.
};

// The ddp-runs of a job, with real Replicas and libraft, over a simulated network: messages are
// late, lost, and come twice; nodes are cut off in one direction or both; processes end, stop for a
// while, and their clocks run at different rates. A ddp-run that has ended is started again on the
// same node, the first one as if it were the first of the job. From seed kWithResets on, the
// connections of a living process are reset, too, as by a firewall that is loaded again.
//
// What must hold: no two rounds have the same number and numbers only grow, whoever begins them; a
// coordinator that is told that it leads has not been replaced; and when all is well again, one
// coordinator leads all nodes. If most voters end at once, nobody knows the job for sure. Then a
// ddp-run that takes itself for the first may begin it again; then a ddp-run whose node has been in
// the new job never goes on with the old one. One assumption: a node that is started again gets to
// hear the coordinator within the time of its last call.
class ReplicasSimulation {
 public:
  static constexpr std::uint64_t kWithResets = 1'000'000'000;

  explicit ReplicasSimulation(std::uint64_t seed, bool verbose = false);

  // The violated property, or nothing if all held.
  std::optional<std::string> run(ReplicasCoverage& coverage);

 private:
  // One ddp-run.
  struct Process {
    std::unique_ptr<replicas::JobReplica> replica;
    int node = 0;
    int port = 0;
    bool alive = true;
    TimePoint stopped_until;
    std::deque<replicas::ReplicaMessage> stopped;  // Arrived while it was stopped.
    int resets = 0;                                // Messages of before are lost.
    Duration offset{0};                            // Its clock is rate * time + offset.
    double rate = 1;
    Round last_round = kNoRound;  // Of its agent.
    bool was_joined = false;
    int joined_to = -1;                   // The process to which its agent is connected.
    replicas::MemberId group = 0;         // As it says.
    replicas::MemberId took_part_in = 0;  // The group of the last round in which its node was.
    // While it coordinates.
    Round next_round = 0;
    TimePoint won_at;
    bool storing = false;
    std::uint64_t office = 0;  // Counts offices over all processes.
  };

  static HostPort place(int node, int port);
  void start(int node);
  void tick(int process);
  void send(int from, const HostPort& to, const replicas::ReplicaMessage& message);
  void arrive(int process, const replicas::ReplicaMessage& message);
  void won(int process, const rendezvous::JobRecord& record);
  void lost(int process);
  void begin_round(int process);
  bool last_call_is_over(int process) const;
  void round_begun(int process, std::uint64_t office, Round round);
  void confirm(int process);
  void connect_agent(int process);
  void disconnect_agent(int process);
  void look_at_agents();
  bool reaches(int from, int to) const;
  // replicas_faults.cc
  void fault();
  bool may_crash() const;
  void crash(int process);
  void close_connections(int process);
  void reset_connections(int process);
  TimePoint clock(const Process& process) const;
  void violate(const std::string& what);
  void log(const std::string& line) const;
  std::vector<int> living() const;
  void check_end();

  Random random_;
  const bool has_resets_;
  const bool verbose_;
  EventQueue queue_;
  const int nodes_;
  const int voters_;
  const bool gentle_;  // One crash at a time: then the job must go on.
  std::vector<Process> processes_;
  std::map<int, int> by_port_;
  std::set<std::pair<int, int>> cut_;  // From node, to node.
  std::int64_t loss_percent_ = 0;
  std::int64_t max_delay_ms_ = 5;
  std::optional<std::string> violation_;
  replicas::MemberId group_ = 0;  // That has begun it.
  struct Begun {
    Round round = -1;          // The last one.
    std::uint64_t office = 0;  // That has begun it.
  };
  std::map<replicas::MemberId, Begun> begun_;  // By group.
  // Those that have begun a round, in the order of their first one; 0 stands for none.
  std::vector<replicas::MemberId> groups_{0};
  std::uint64_t offices_ = 0;
  bool faults_are_over_ = false;
  TimePoint last_crash_;
  std::optional<TimePoint> without_coordinator_since_;
  ReplicasCoverage* coverage_ = nullptr;
};

}  // namespace ddp::sim
