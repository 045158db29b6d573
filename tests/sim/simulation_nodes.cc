// Nodes, their agents, and the processes of workers.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

constexpr int kIdleTicksMax = 20;

}  // namespace

int Simulation::start_node(int node_rank) {
  Node node;
  node.spec = scenario_.job;
  const int index = static_cast<int>(nodes_.size());
  // Ids are random in life: their order is not the order of hosts.
  node.spec.node_id = fmt::format("{:04x}-{}", random_.between(0, 0xffff), index);
  node.spec.host = fmt::format("host{}", index);
  node.spec.node_rank = node_rank;
  node.spec.nproc = static_cast<int>(random_.between(1, 3));
  nodes_.push_back(std::move(node));
  log(fmt::format("node {} starts", index));
  start_agent(index);
  return index;
}

void Simulation::start_agent(int node_index) {
  Node& node = nodes_[static_cast<std::size_t>(node_index)];
  Agent agent;
  agent.id = static_cast<int>(agents_.size());
  agent.node = node_index;
  agent.core = std::make_unique<agent::AgentCore>(node.spec, node.last_round, node.restarts);
  node.agent = agent.id;
  log(fmt::format("agent {} starts on node {}", agent.id, node_index));
  agents_.push_back(std::move(agent));
  on_agent(node.agent, [this](agent::AgentCore& core) { return core.start(queue_.now()); });
}

void Simulation::on_agent(int id,
                          std::function<std::vector<agent::Action>(agent::AgentCore&)> event) {
  const Agent& agent = agents_[static_cast<std::size_t>(id)];
  if (!agent.alive) return;
  if (agent.paused_until > queue_.now()) {
    queue_.at(agent.paused_until, [this, id, event = std::move(event)] { on_agent(id, event); });
    return;
  }
  feed_agent(id, event(*agent.core));
}

void Simulation::feed_agent(int id, const std::vector<agent::Action>& actions) {
  for (const agent::Action& action : actions) {
    checker_.expect(agents_[static_cast<std::size_t>(id)].alive,
                    fmt::format("agent {} acts after its exit", id));
    std::visit([this, id](const auto& a) { carry_out(id, a); }, action);
  }
  schedule_agent_tick(id);
}

void Simulation::schedule_agent_tick(int id) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  if (!agent.alive) return;
  const auto deadline = agent.core->next_deadline();
  if (!deadline || (agent.wake && *agent.wake <= *deadline)) return;
  agent.wake = *deadline;
  queue_.at(*deadline, [this, id, when = *deadline] {
    if (agents_[static_cast<std::size_t>(id)].wake != when) return;
    on_agent(id, [this, id](agent::AgentCore& core) {
      agents_[static_cast<std::size_t>(id)].wake.reset();
      auto actions = core.on_tick(queue_.now());
      const auto next = core.next_deadline();
      int& idle = agents_[static_cast<std::size_t>(id)].idle_ticks;
      idle = next && *next <= queue_.now() ? idle + 1 : 0;
      checker_.expect(idle < kIdleTicksMax, fmt::format("the clock of agent {} stands still", id));
      return actions;
    });
  });
}

// ---- what agents do ----

void Simulation::carry_out(int id, const agent::Connect& action) {
  queue_.after(action.delay + random_.ms(0, 5), [this, id] {
    Agent& agent = agents_[static_cast<std::size_t>(id)];
    if (!agent.alive) return;
    const Node& node = nodes_[static_cast<std::size_t>(agent.node)];
    if (node.partitioned_until > queue_.now() || coordinator_ == nullptr) {
      const bool partition = node.partitioned_until > queue_.now();
      queue_.after(partition ? Duration{500} : Duration{1}, [this, id, partition] {
        on_agent(id, [this, partition](agent::AgentCore& core) {
          return core.on_connect_failed(queue_.now(),
                                        partition ? "timed out" : "connection refused");
        });
      });
      return;
    }
    Connection connection;
    connection.id = next_connection_++;
    connection.agent = id;
    agent.connection = connection.id;
    connections_[connection.id] = connection;
    on_agent(id, [this](agent::AgentCore& core) { return core.on_connected(queue_.now()); });
  });
}

void Simulation::drop_connection(int id) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  if (!agent.connection) return;
  Connection& connection = connections_.at(*agent.connection);
  connection.agent_open = false;
  const TimePoint when = arrival(connection.last_up, nodes_[static_cast<std::size_t>(agent.node)]);
  close_for_coordinator(connection.id, std::chrono::duration_cast<Duration>(when - queue_.now()));
  agent.connection.reset();
}

void Simulation::carry_out(int id, const agent::Disconnect&) { drop_connection(id); }

void Simulation::carry_out(int id, const agent::SendToCoordinator& action) {
  const Agent& agent = agents_[static_cast<std::size_t>(id)];
  // The connection may have broken without the core having heard of it.
  if (!agent.connection || !connections_.at(*agent.connection).agent_open) return;
  Connection& connection = connections_.at(*agent.connection);
  connection.last_up = arrival(connection.last_up, nodes_[static_cast<std::size_t>(agent.node)]);
  wire::AgentMessage message = action.message;
  if (scenario_.through_wire) {
    auto decoded = wire::decode_agent_message(wire::encode(message));
    checker_.expect(decoded.has_value(), "a message does not survive its encoding");
    if (decoded.has_value()) message = *decoded;
  }
  queue_.at(connection.last_up, [this, to = connection.id, message] { deliver_up(to, message); });
}

void Simulation::carry_out(int id, const agent::SpawnWorkers& action) {
  const Agent& agent = agents_[static_cast<std::size_t>(id)];
  Node& node = nodes_[static_cast<std::size_t>(agent.node)];
  checker_.spawn(id, action.round, live_workers(id));
  const int life = agent.life;
  World& world = worlds_[{life, action.round.round}];
  world.size = action.round.world_size;
  log(fmt::format("agent {} spawns {} workers of round {} ({})", id, node.spec.nproc,
                  action.round.round, action.round.reason));
  const auto& self = action.round.members[static_cast<std::size_t>(action.round.group_rank)];
  for (int local_rank = 0; local_rank < node.spec.nproc; ++local_rank) {
    if (node.spawn_fails) {
      node.spawn_fails = false;
      world.broken = true;
      const int status = random_.one_in(2) ? 1 : static_cast<int>(kExitNotFound);
      queue_.after(Duration{0}, [this, id, local_rank, status] {
        on_agent(id, [this, local_rank, status](agent::AgentCore& core) {
          return core.on_spawn_failed(queue_.now(), local_rank, status, "it cannot be started");
        });
      });
      continue;
    }
    Worker worker;
    worker.agent = id;
    worker.life = life;
    worker.round = action.round.round;
    worker.local_rank = local_rank;
    worker.rank = self.first_rank + local_rank;
    worker.pid = 1'000 + static_cast<int>(workers_.size());
    worker.stubborn = random_.one_in(8);
    world.workers.push_back(workers_.size());
    workers_.push_back(worker);
    if (world.broken) peers_suffer(worker);
  }
  if (static_cast<int>(world.workers.size()) == world.size) {
    queue_.after(scenario_.work,
                 [this, life, round = action.round.round] { complete_world(life, round); });
  }
}

void Simulation::carry_out(int id, const agent::SignalWorkers& action) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.agent != id || !worker.alive || worker.stubborn) continue;
    // Most die of the signal, some exit on it in a way of their own.
    const std::int64_t way = random_.between(0, 9);
    const int signal = way < 7 ? action.signal : 0;
    const int code = way < 7 ? 0 : way == 7 ? 0 : way == 8 ? 128 + action.signal : 1;
    queue_.after(random_.ms(1, 300),
                 [this, i, code, signal] { end_worker(i, code, signal, true); });
  }
}

void Simulation::carry_out(int id, const agent::KillWorkers&) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].agent != id || !workers_[i].alive) continue;
    queue_.after(random_.ms(1, 20), [this, i] { end_worker(i, 0, SIGKILL, true); });
  }
}

void Simulation::carry_out(int id, const agent::ClearRound&) {
  queue_.after(random_.ms(0, 20), [this, id] {
    if (!agents_[static_cast<std::size_t>(id)].alive) return;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].agent == id) end_worker(i, 0, SIGKILL, true);
    }
    on_agent(id, [this](agent::AgentCore& core) { return core.on_round_cleared(queue_.now()); });
  });
}

void Simulation::carry_out(int id, const agent::Print& action) {
  log(fmt::format("agent {} says: {}", id, action.text));
}

void Simulation::carry_out(int id, const agent::Exit& action) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  log(fmt::format("agent {} exits with {}: {}", id, action.result.exit_code,
                  action.result.summary));
  checker_.agent_exits(id, action.result, live_workers(id), agent.finish_code);
  ++exit_codes_[action.result.exit_code];
  drop_connection(id);
  agent.alive = false;
}

// ---- processes ----

void Simulation::crash_agent(int id) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  agent.alive = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].agent == id) end_worker(i, 0, SIGKILL, true);
  }
  drop_connection(id);
  if (!nodes_[static_cast<std::size_t>(agent.node)].alive) return;
  ++starts_to_come_;
  queue_.after(random_.ms(1, 100), [this, node = agent.node] {
    --starts_to_come_;
    // A ddp-run that was killed meanwhile starts nothing.
    if (nodes_[static_cast<std::size_t>(node)].alive) start_agent(node);
  });
}

int Simulation::live_workers(int agent) const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(),
                    [&](const Worker& worker) { return worker.agent == agent && worker.alive; }));
}

void Simulation::end_worker(std::size_t index, int exit_code, int signal, bool by_order) {
  Worker& worker = workers_[index];
  if (!worker.alive) return;
  worker.alive = false;
  log(fmt::format("worker {} (rank {}, round {}) ends: code {}, signal {}", worker.pid, worker.rank,
                  worker.round, exit_code, signal));
  if (exit_code == 0 && signal == 0 && !by_order) {
    checker_.worker_succeeded(worker.life, worker.round, worker.rank);
  } else {
    peers_suffer(worker);
  }
  agent::WorkerExit exit;
  exit.local_rank = worker.local_rank;
  exit.pid = worker.pid;
  exit.exit_code = exit_code;
  exit.signal = signal;
  exit.time_ms = queue_.now_ms();
  exit.secondary =
      exit_code == 2;  // This simulation's code of a worker that says so before it ends.
  on_agent(worker.agent, [this, exit](agent::AgentCore& core) {
    return core.on_worker_exit(queue_.now(), exit);
  });
}

// Whoever waits for the dead one fails in one of three ways, or never notices.
void Simulation::peers_suffer(const Worker& dead) {
  World& world = worlds_[{dead.life, dead.round}];
  world.broken = true;
  for (const std::size_t i : world.workers) {
    if (!workers_[i].alive) continue;
    const Duration delay = random_.ms(1, 1'500);
    const std::int64_t way = random_.between(0, 3);
    if (way == 0) continue;
    const int code = way == 1 ? static_cast<int>(kExitCollectiveFailed) : way == 2 ? 2 : 1;
    queue_.after(delay, [this, i, code] { end_worker(i, code, 0, false); });
  }
}

void Simulation::complete_world(int life, Round round) {
  const World& world = worlds_[{life, round}];
  if (world.broken) return;
  const bool hangs = std::any_of(world.workers.begin(), world.workers.end(),
                                 [this](std::size_t i) { return workers_[i].hangs; });
  if (hangs) {
    queue_.after(Duration{500}, [this, life, round] { complete_world(life, round); });
    return;
  }
  for (const std::size_t i : world.workers) {
    queue_.after(random_.ms(0, 200), [this, i] { end_worker(i, 0, 0, false); });
  }
}

}  // namespace ddp::sim
