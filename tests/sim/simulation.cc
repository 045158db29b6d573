// The course of a simulation: its start, its faults, its end.
#include "tests/sim/simulation.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "common/base/exit_codes.h"

namespace ddp::sim {
namespace {

// Far beyond the sum of all time limits of a scenario: who still lives then lives for ever.
constexpr Duration kLivenessLimit{1'000'000};
constexpr Duration kForEver{1'000'000'000};
// An unanswered connection breaks on the agent's side after this (TCP_USER_TIMEOUT).
constexpr Duration kTcpTimeout{8'000};

}  // namespace

Simulation::Simulation(std::uint64_t seed, bool verbose)
    : Simulation(make_scenario(seed), seed, verbose) {}
Simulation::Simulation(Scenario scenario, std::uint64_t seed, bool verbose)
    : seed_(seed),
      verbose_(verbose),
      scenario_(std::move(scenario)),
      random_(seed),
      checker_(scenario_.job, scenario_.with_records) {}
Simulation::~Simulation() = default;

void Simulation::log(const std::string& line) {
  const std::string text = fmt::format("{:>8} {}\n", queue_.now_ms(), line);
  for (const char c : text) {
    history_ = (history_ ^ static_cast<unsigned char>(c)) * 1'099'511'628'211ull;
  }
  if (verbose_) std::fputs(text.c_str(), stdout);
}

std::optional<std::string> Simulation::run() {
  start_coordinator();
  for (std::size_t i = 0; i < scenario_.node_starts.size(); ++i) {
    const int rank = scenario_.with_node_ranks ? static_cast<int>(i) : -1;
    ++starts_to_come_;
    queue_.after(scenario_.node_starts[i], [this, rank] {
      --starts_to_come_;
      start_node(rank);
    });
  }
  for (const Fault& fault : scenario_.faults) {
    queue_.after(fault.at, [this, fault] { inject(fault); });
  }
  queue_.after(kFaultsEnd, [this] { end_of_faults(); });
  const TimePoint end = queue_.now() + kLivenessLimit;
  while (!checker_.violation() && !all_through() && queue_.run_one(end)) {
  }
  if (!checker_.violation()) check_end();
  return checker_.violation();
}

bool Simulation::all_through() const { return starts_to_come_ == 0 && live_agents().empty(); }

void Simulation::check_end() {
  for (const int agent : live_agents()) {
    checker_.expect(false, fmt::format("agent {} never exits", agent));
  }
  for (const Worker& worker : workers_) {
    checker_.expect(!worker.alive, fmt::format("worker {} is left over", worker.pid));
  }
  if (!scenario_.faults.empty()) return;
  const bool enough =
      static_cast<int>(scenario_.node_starts.size()) >= scenario_.job.rules.min_nodes;
  const auto finish = checker_.finishes().find(1);
  checker_.expect(finish != checker_.finishes().end(), "nothing went wrong and the job has no end");
  if (finish == checker_.finishes().end()) return;
  checker_.expect(finish->second.exit_code == (enough ? kExitSuccess : kExitJoinTimeout),
                  fmt::format("nothing went wrong and the job ends with {}: {}",
                              finish->second.exit_code, finish->second.summary));
}

// ---- faults ----

std::vector<int> Simulation::live_agents() const {
  std::vector<int> live;
  for (const Agent& agent : agents_) {
    if (agent.alive) live.push_back(agent.id);
  }
  return live;
}

void Simulation::inject(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kWorkerKilled:
    case FaultKind::kWorkerFails:
    case FaultKind::kWorkerHangs:
    case FaultKind::kCollectiveFails:
      return hit_worker(fault);
    case FaultKind::kCoordinatorCrash:
      return crash_coordinator(fault.length);
    case FaultKind::kNodeJoins:
      log("fault: one more node");
      start_node(-1);
      return;
    case FaultKind::kJobEnded:
      if (coordinator_ == nullptr) return;
      log("fault: the user ends the job");
      feed_coordinator(coordinator_->end_job(queue_.now(), "sim", 130, "the user ended the job"));
      return;
    default:
      return hit_node(fault);
  }
}

void Simulation::hit_worker(const Fault& fault) {
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive) live.push_back(i);
  }
  if (live.empty()) return;
  const std::size_t victim = live[static_cast<std::size_t>(fault.choice) % live.size()];
  log(fmt::format("fault: worker {} of round {}", workers_[victim].pid,
                  workers_[victim].world.second));
  if (fault.kind == FaultKind::kWorkerHangs) {
    workers_[victim].hangs = true;
  } else if (fault.kind == FaultKind::kCollectiveFails) {
    ++events_["collective fails by itself"];
    if (workers_[victim].reconfigurable) {
      park_worker(victim, workers_[victim].world);
    } else {
      end_worker(victim, kExitCollectiveFailed, 0, false);
    }
  } else if (fault.kind == FaultKind::kWorkerKilled) {
    end_worker(victim, 0, fault.status, false);
  } else {
    end_worker(victim, fault.status, 0, false);
  }
}

void Simulation::hit_node(const Fault& fault) {
  const std::vector<int> live = live_agents();
  if (live.empty()) return;
  const int id = live[static_cast<std::size_t>(fault.choice) % live.size()];
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  Node& node = nodes_[static_cast<std::size_t>(agent.node)];
  log(fmt::format("fault: kind {} at agent {}", static_cast<int>(fault.kind), id));
  switch (fault.kind) {
    case FaultKind::kSpawnFails:
      node.spawn_fails = true;
      return;
    case FaultKind::kAgentCrash:
      return crash_agent(id);
    case FaultKind::kNodeKilled:
      return kill_ddp_run(id, fault.length);
    case FaultKind::kNodeReturns:
      return lose_silently(id);
    case FaultKind::kUserSignal:
      return send_user_signal(id, fault.choice);
    case FaultKind::kConnectionReset:
      if (!agent.connection) return;
      close_for_coordinator(*agent.connection, random_.ms(0, 50));
      close_for_agent(*agent.connection, random_.ms(0, 50));
      return;
    case FaultKind::kPartition: {
      const Duration length = fault.length == Duration{0} ? kForEver : fault.length;
      node.partitioned_until = std::max(node.partitioned_until, queue_.now() + length);
      if (length < kTcpTimeout || !agent.connection) return;
      close_for_agent(*agent.connection, kTcpTimeout);
      return;
    }
    case FaultKind::kAgentPaused:
      agent.paused_until = queue_.now() + std::max(fault.length, Duration{100});
      return;
    default:
      return;
  }
}

void Simulation::kill_ddp_run(int id, Duration length) {
  Node& node = nodes_[static_cast<std::size_t>(agents_[static_cast<std::size_t>(id)].node)];
  node.alive = false;
  queue_.after(random_.ms(1, 20), [this, id] {
    agents_[static_cast<std::size_t>(id)].parent_lost = true;
    on_agent(id, [this](agent::AgentCore& core) { return core.on_parent_lost(queue_.now()); });
  });
  if (length == Duration{0}) return;
  ++starts_to_come_;
  queue_.after(length, [this, rank = node.spec.node_rank] {
    --starts_to_come_;
    start_node(rank);
  });
}

// Nobody tells the coordinator; the successor may come before the lease is over.
void Simulation::lose_silently(int id) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  Node& node = nodes_[static_cast<std::size_t>(agent.node)];
  if (agent.connection) close_for_coordinator(*agent.connection, Duration{60'000});
  node.alive = false;
  agent.connection.reset();
  ++starts_to_come_;
  queue_.after(random_.ms(10, 3'000), [this, rank = node.spec.node_rank, host = node.spec.host] {
    --starts_to_come_;
    ++events_["node comes back with its rank"];
    start_node(rank, host);
  });
  crash_agent(id);
}

void Simulation::send_user_signal(int id, std::int64_t choice) {
  const int signal = choice % 2 == 0 ? SIGTERM : SIGINT;
  for (const int victim : live_agents()) {
    if (victim != id && choice % 5 != 0) continue;
    const auto stop = [this, signal, victim] {
      on_agent(victim, [this, signal](agent::AgentCore& core) {
        return core.on_signal(queue_.now(), signal);
      });
    };
    queue_.after(random_.ms(0, 20), stop);
    if (choice % 3 == 0) queue_.after(random_.ms(100, 500), stop);
  }
}

void Simulation::end_of_faults() {
  log("faults are over");
  faults_are_over_ = true;
  for (Worker& worker : workers_) worker.hangs = false;
}

// ---- large jobs ----

void Simulation::start_nodes(int count, Duration within) {
  for (int i = 0; i < count; ++i) {
    queue_.after(random_.ms(0, within.count()), [this] { start_node(-1); });
  }
}

void Simulation::run_for(Duration time) {
  const TimePoint end = queue_.now() + time;
  while (!checker_.violation() && queue_.run_one(end)) {
  }
}

void Simulation::kill_node(int node) {
  nodes_[static_cast<std::size_t>(node)].alive = false;
  crash_agent(nodes_[static_cast<std::size_t>(node)].agent);
}

bool Simulation::run_until_in_round(Round round, int workers, Duration limit) {
  const TimePoint end = queue_.now() + limit;
  while (in_round_[round] < workers && !checker_.violation() && queue_.run_one(end)) {
  }
  return in_round_[round] >= workers;
}

}  // namespace ddp::sim
