// Nodes, their agents, and the processes of workers.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

constexpr int kAgentIdleTicksMax = 20;

}  // namespace

int Simulation::start_node(int node_rank, const std::string& host) {
  Node node;
  node.spec = scenario_.job;
  const int index = static_cast<int>(nodes_.size());
  // Ids are random in life: their order is not the order of hosts.
  node.spec.node_id = fmt::format("{:04x}-{}", random_.between(0, 0xffff), index);
  node.spec.host = host.empty() ? fmt::format("host{}", index) : host;
  node.spec.node_rank = node_rank;
  node.spec.nproc = static_cast<int>(random_.between(1, scenario_.nproc_max));
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
  node.agents.push_back(agent.id);
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
      checker_.expect(idle < kAgentIdleTicksMax,
                      fmt::format("the clock of agent {} stands still", id));
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
  ++(std::holds_alternative<wire::Heartbeat>(message) ? heartbeats_ : messages_);
  if (const auto* join = std::get_if<wire::Join>(&message); join && join->running_round >= 0) {
    ++events_["join with a round that runs"];
  }
  if (const auto* stopped = std::get_if<wire::Stopped>(&message); stopped && stopped->parked > 0) {
    ++events_["node stops with parked workers"];
  }
  if (scenario_.through_wire) {
    auto decoded = wire::decode_agent_message(wire::encode(message));
    checker_.expect(decoded.has_value(), "a message does not survive its encoding");
    if (decoded.has_value()) message = *decoded;
  }
  queue_.at(connection.last_up, [this, to = connection.id, message] { deliver_up(to, message); });
}

void Simulation::carry_out(int id, const agent::SpawnWorkers& action) {
  const int life = agents_[static_cast<std::size_t>(id)].life;
  Node& node = nodes_[static_cast<std::size_t>(agents_[static_cast<std::size_t>(id)].node)];
  checker_.spawn(id, action.round, live_workers(id));
  const WorldKey key{life, action.round.round};
  World& world = worlds_[key];
  world.size = action.round.world_size;
  in_round_[action.round.round] += node.spec.nproc;
  log(fmt::format("agent {} begins round {} with {} workers ({})", id, action.round.round,
                  node.spec.nproc, action.round.reason));
  const auto& self = action.round.members[static_cast<std::size_t>(action.round.group_rank)];
  std::map<int, std::size_t> parked;
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    if (!workers_[i].parked) continue;
    // As RoundProcesses::start() looks: an end of which the core does not know yet is over.
    workers_[i].replaced = !workers_[i].alive;
    if (workers_[i].alive) parked[workers_[i].local_rank] = i;
  }
  for (int local_rank = 0; local_rank < node.spec.nproc; ++local_rank) {
    const Rank rank = self.first_rank + local_rank;
    if (const auto found = parked.find(local_rank); found != parked.end()) {
      hand_over(found->second, rank, key);
    } else if (node.spawn_fails) {
      node.spawn_fails = false;
      world.broken = true;
      const int status = random_.one_in(2) ? 1 : static_cast<int>(kExitNotFound);
      queue_.after(Duration{0}, [this, id, local_rank, status] {
        on_agent(id, [this, local_rank, status](agent::AgentCore& core) {
          return core.on_spawn_failed(queue_.now(), local_rank, status, "it cannot be started");
        });
      });
    } else {
      start_worker(id, local_rank, rank, key);
    }
  }
  if (world.broken) peers_suffer(key);
  if (static_cast<int>(world.workers.size()) == world.size) meet(key);
}

void Simulation::carry_out(int id, const agent::SignalWorkers& action) {
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    const Worker& worker = workers_[i];
    if (!worker.alive) continue;
    if (!action.abort_reason.empty()) abort_worker(i);
    if (action.keep.contains(worker.local_rank) || worker.stubborn) continue;
    // Most die of the signal, some exit on it in a way of their own.
    const std::int64_t way = random_.between(0, 9);
    const int signal = way < 7 ? action.signal : 0;
    const int code = way < 7 ? 0 : way == 7 ? 0 : way == 8 ? 128 + action.signal : 1;
    queue_.after(random_.ms(1, 300),
                 [this, i, code, signal] { end_worker(i, code, signal, true); });
  }
}

void Simulation::carry_out(int id, const agent::KillWorkers& action) {
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    if (!workers_[i].alive || action.keep.contains(workers_[i].local_rank)) continue;
    queue_.after(random_.ms(1, 20), [this, i] { end_worker(i, 0, SIGKILL, true); });
  }
}

void Simulation::carry_out(int id, const agent::ClearRound& action) {
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    const Worker& worker = workers_[i];
    checker_.expect(!worker.alive || worker.parked || !action.keep.contains(worker.local_rank),
                    fmt::format("agent {} keeps worker {}, which has not parked", id, worker.pid));
  }
  checker_.expect(agents_[static_cast<std::size_t>(id)].parent_lost || live_workers(id) == 0,
                  fmt::format("agent {} clears a round whose workers live", id));
  queue_.after(random_.ms(0, 20), [this, id, keep = action.keep] {
    if (!agents_[static_cast<std::size_t>(id)].alive) return;
    for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
      if (!keep.contains(workers_[i].local_rank)) end_worker(i, 0, SIGKILL, true);
    }
    on_agent(id, [this](agent::AgentCore& core) { return core.on_round_cleared(queue_.now()); });
  });
}

void Simulation::carry_out(int id, const agent::RequestCommit& action) {
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    const Worker& worker = workers_[i];
    if (!worker.alive || worker.parked || !action.from.contains(worker.local_rank)) continue;
    // Some take longer than they have, or do not answer at all.
    if (worker.hangs || (!scenario_.obliging && random_.one_in(8))) continue;
    queue_.after(random_.ms(0, scenario_.obliging ? 100 : 1'000), [this, i, world = worker.world] {
      if (!takes_part(i, world)) return;
      const Worker& answering = workers_[i];
      ++events_["worker commits on request"];
      on_agent(answering.agent, [this, local_rank = answering.local_rank, world,
                                 commit = answering.commit](agent::AgentCore& core) {
        return core.on_worker_committed(queue_.now(), local_rank, world.second, commit);
      });
    });
  }
}

void Simulation::carry_out(int id, const agent::FindHung& action) {
  std::set<int> hung;
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    const Worker& worker = workers_[i];
    if (!worker.alive || !action.stalled.contains(worker.local_rank)) continue;
    // Not every worker keeps a record of what it waits for.
    if (worker.hangs || random_.one_in(16)) hung.insert(worker.local_rank);
  }
  queue_.after(random_.ms(0, 10), [this, id, hung] {
    on_agent(id, [this, hung](agent::AgentCore& core) {
      return core.on_hung_workers(queue_.now(), hung);
    });
  });
}

void Simulation::carry_out(int, const agent::DumpStacks&) { ++events_["hung worker found"]; }

void Simulation::carry_out(int id, const agent::KillWorker& action) {
  for (const std::size_t i : agents_[static_cast<std::size_t>(id)].workers) {
    if (!workers_[i].alive || workers_[i].local_rank != action.local_rank) continue;
    queue_.after(random_.ms(1, 500), [this, i] { end_worker(i, 0, SIGKILL, false); });
  }
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
  // Those that wait for a round that will not come go with their agent.
  const std::vector<std::size_t> started = agent.workers;
  for (const std::size_t i : started) {
    if (workers_[i].parked) end_worker(i, 0, SIGKILL, true);
  }
  drop_connection(id);
  agent.alive = false;
}

}  // namespace ddp::sim
