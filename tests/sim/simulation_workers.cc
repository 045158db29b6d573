// The processes of workers. They train in steps that all workers of a world make together, and keep
// what they have committed.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

constexpr std::int64_t kSteps = 20;     // Of a whole training.
constexpr std::int64_t kSaveEvery = 5;  // Steps between checkpoints on disk.

}  // namespace

void Simulation::start_worker(int agent, int local_rank, Rank rank, WorldKey world) {
  std::vector<int> kinds;
  if (scenario_.with_plain) kinds.push_back(0);
  if (scenario_.with_reporting) kinds.push_back(1);
  if (scenario_.with_reconfigurable) kinds.push_back(2);
  // Mostly one program, but nothing says that all ranks run the same.
  const auto kind = random_.one_in(8) ? kinds.at(static_cast<std::size_t>(random_.between(
                                            0, static_cast<std::int64_t>(kinds.size()) - 1)))
                                      : kinds.back();
  Worker worker;
  worker.agent = agent;
  worker.world = world;
  worker.local_rank = local_rank;
  worker.rank = rank;
  worker.pid = 1'000 + static_cast<int>(workers_.size());
  worker.stubborn = !scenario_.obliging && random_.one_in(8);
  worker.reports = kind >= 1;
  worker.reconfigurable = kind == 2;
  const std::size_t index = workers_.size();
  worlds_[world].workers.push_back(index);
  agents_[static_cast<std::size_t>(agent)].workers.push_back(index);
  workers_.push_back(worker);
  if (worker.reports) say_hello(index, random_.ms(1, 100));
}

// A parked worker takes part in another round.
void Simulation::hand_over(std::size_t index, Rank rank, WorldKey world) {
  Worker& worker = workers_[index];
  checker_.expect(worker.alive && worker.parked,
                  fmt::format("worker {} is given round {} while it runs {}", worker.pid,
                              world.second, worker.world.second));
  log(fmt::format("worker {} goes on in round {}", worker.pid, world.second));
  ++events_["worker goes on in another round"];
  worker.world = world;
  worker.rank = rank;
  worker.parked = false;
  worlds_[world].workers.push_back(index);
  say_hello(index, Duration{0});
}

void Simulation::say_hello(std::size_t index, Duration delay) {
  queue_.after(delay, [this, index, world = workers_[index].world] {
    if (!takes_part(index, world)) return;
    const Worker& worker = workers_[index];
    on_agent(worker.agent, [this, local_rank = worker.local_rank,
                            reconfigurable = worker.reconfigurable](agent::AgentCore& core) {
      return core.on_worker_hello(queue_.now(), local_rank, reconfigurable);
    });
  });
}

bool Simulation::takes_part(std::size_t index, WorldKey world) const {
  const Worker& worker = workers_[index];
  return worker.alive && !worker.parked && worker.world == world;
}

void Simulation::abort_worker(std::size_t index) {
  const Worker& worker = workers_[index];
  if (!worker.reconfigurable || worker.parked || worker.hangs) return;
  // Some are in code that does not look at the abort word for long, or never.
  if (!scenario_.obliging && random_.one_in(16)) return;
  const bool late = !scenario_.obliging && random_.one_in(16);
  const Duration delay = late ? random_.ms(1'000, 9'000) : random_.ms(0, 50);
  queue_.after(delay, [this, index, world = worker.world] { park_worker(index, world); });
}

void Simulation::park_worker(std::size_t index, WorldKey world) {
  if (!takes_part(index, world)) return;
  Worker& worker = workers_[index];
  worker.parked = true;
  log(fmt::format("worker {} parks in round {} at step {}", worker.pid, world.second,
                  worker.commit));
  worlds_[world].broken = true;
  on_agent(worker.agent, [this, local_rank = worker.local_rank, round = world.second,
                          commit = worker.commit](agent::AgentCore& core) {
    return core.on_worker_parked(queue_.now(), local_rank, round, commit);
  });
  peers_suffer(world);
}

void Simulation::crash_agent(int id) {
  Agent& agent = agents_[static_cast<std::size_t>(id)];
  agent.alive = false;
  const std::vector<std::size_t> started = agent.workers;
  for (const std::size_t i : started) end_worker(i, 0, SIGKILL, true);
  drop_connection(id);
  const int node_index = agents_[static_cast<std::size_t>(id)].node;
  if (!nodes_[static_cast<std::size_t>(node_index)].alive) return;
  ++starts_to_come_;
  queue_.after(random_.ms(1, 100), [this, node_index] {
    --starts_to_come_;
    // A ddp-run that was killed meanwhile starts nothing.
    if (nodes_[static_cast<std::size_t>(node_index)].alive) start_agent(node_index);
  });
}

int Simulation::live_workers(int agent) const {
  const auto& started = agents_[static_cast<std::size_t>(agent)].workers;
  return static_cast<int>(std::count_if(started.begin(), started.end(), [&](std::size_t i) {
    return workers_[i].alive && !workers_[i].parked;
  }));
}

void Simulation::end_worker(std::size_t index, int exit_code, int signal, bool by_order) {
  Worker& worker = workers_[index];
  if (!worker.alive) return;
  worker.alive = false;
  log(fmt::format("worker {} (rank {}, round {}{}) ends: code {}, signal {}", worker.pid,
                  worker.rank, worker.world.second, worker.parked ? ", parked" : "", exit_code,
                  signal));
  if (exit_code == 0 && signal == 0 && !by_order) {
    checker_.worker_succeeded(worker.world.first, worker.world.second, worker.rank);
  } else if (!worker.parked) {
    peers_suffer(worker.world);
  }
  if (worker.parked) ++events_["parked worker ends"];
  agent::WorkerExit exit;
  exit.local_rank = worker.local_rank;
  exit.pid = worker.pid;
  exit.exit_code = exit_code;
  exit.signal = signal;
  exit.time_ms = queue_.now_ms();
  exit.secondary =
      exit_code == 2;  // This simulation's code of a worker that says so before it ends.
  on_agent(worker.agent, [this, index, exit](agent::AgentCore& core) {
    if (workers_[index].replaced) return std::vector<agent::Action>{};
    return core.on_worker_exit(queue_.now(), exit);
  });
}

// Whoever waits for the dead one fails in one of three ways, or parks, or never notices.
void Simulation::peers_suffer(WorldKey key) {
  World& world = worlds_[key];
  world.broken = true;
  for (const std::size_t i : world.workers) {
    if (!takes_part(i, key)) continue;
    if (scenario_.obliging) continue;  // The abort reaches it first.
    const Duration delay = random_.ms(1, 1'500);
    const std::int64_t way = random_.between(0, 3);
    if (way == 0) continue;
    if (workers_[i].reconfigurable && way != 3) {
      queue_.after(delay, [this, i, key] { park_worker(i, key); });
      continue;
    }
    const int code = way == 1 ? static_cast<int>(kExitCollectiveFailed) : way == 2 ? 2 : 1;
    queue_.after(delay, [this, i, code, key] {
      if (takes_part(i, key)) end_worker(i, code, 0, false);
    });
  }
}

// ---- training ----

// All workers of a world are there. They meet at the store of the coordinator that began the round.
// If that is lost first, they never do, and those that say so wait for the next round.
void Simulation::meet(WorldKey key) {
  const bool late = !scenario_.obliging && random_.one_in(4);
  queue_.after(random_.ms(0, late ? 5'000 : 100), [this, key] {
    const World& world = worlds_[key];
    if (world.broken) return;
    const auto says_so = [this, key](std::size_t i) {
      return takes_part(i, key) && workers_[i].reconfigurable;
    };
    if (life_ != key.first && std::any_of(world.workers.begin(), world.workers.end(), says_so)) {
      log(fmt::format("the workers of round {} never meet", key.second));
      ++events_["store is lost before the workers met"];
      return;
    }
    for (const std::size_t i : world.workers) {
      if (!says_so(i)) continue;
      on_agent(workers_[i].agent,
               [local_rank = workers_[i].local_rank, round = key.second](agent::AgentCore& core) {
                 core.on_worker_joined(local_rank, round);
                 return std::vector<agent::Action>{};
               });
    }
    begin_training(key);
  });
}

// They agree on where to go on.
void Simulation::begin_training(WorldKey key) {
  World& world = worlds_[key];
  // Survivors are those that were in the latest round any of them was in; a spare that has sat out
  // rounds has nothing to say.
  WorldKey latest{-1, kNoRound};
  for (const std::size_t i : world.workers) {
    if (workers_[i].commit >= 0) latest = std::max(latest, workers_[i].committed_in);
  }
  world.step = saved_step_;
  bool any = false;
  for (const std::size_t i : world.workers) {
    const Worker& worker = workers_[i];
    if (worker.commit < 0 || worker.committed_in != latest) continue;
    world.step = any ? std::min(world.step, worker.commit) : worker.commit;
    any = true;
  }
  if (any) {
    checker_.expect(world.step >= all_have_[latest],
                    fmt::format("round {} goes on at step {}, but all had committed {} in round {}",
                                key.second, world.step, all_have_[latest], latest.second));
  }
  for (const std::size_t i : world.workers) {
    if (!workers_[i].alive) continue;
    workers_[i].commit = world.step;
    workers_[i].committed_in = key;
  }
  all_have_[key] = world.step;
  train(key);
}

void Simulation::train(WorldKey key) {
  queue_.after(scenario_.work / kSteps + Duration{1}, [this, key] {
    const World& world = worlds_[key];
    if (world.broken) return;
    const bool hangs = std::any_of(world.workers.begin(), world.workers.end(),
                                   [this](std::size_t i) { return workers_[i].hangs; });
    if (!hangs) make_step(key);
    if (worlds_[key].step < kSteps - 1) return train(key);
    for (const std::size_t i : worlds_[key].workers) {
      queue_.after(random_.ms(0, 200), [this, i, key] {
        if (takes_part(i, key)) end_worker(i, 0, 0, false);
      });
    }
  });
}

// Of one step. The slowest takes the whole step, and the others wait for it.
double Simulation::compute_ms(const Worker& worker) const {
  const double step = static_cast<double>(scenario_.work.count()) / kSteps;
  const bool is_slow = agents_[static_cast<std::size_t>(worker.agent)].node == 0;
  return scenario_.with_straggler && !is_slow ? step / 3 : step;
}

void Simulation::make_step(WorldKey key) {
  World& world = worlds_[key];
  all_have_[key] = world.step;  // A step has a collective: nobody is further behind than that.
  ++world.step;
  if (world.step % kSaveEvery == 0) saved_step_ = std::max(saved_step_, world.step);
  for (const std::size_t i : world.workers) {
    queue_.after(random_.ms(0, scenario_.work.count() / kSteps), [this, i, key, step = world.step] {
      if (!takes_part(i, key)) return;
      Worker& worker = workers_[i];
      worker.commit = step;
      if (!worker.reports) return;
      worker.computed_ms += compute_ms(worker);
      on_agent(worker.agent, [this, local_rank = worker.local_rank, step,
                              computed_ms = worker.computed_ms](agent::AgentCore& core) {
        core.on_worker_metrics(local_rank, {.step = step, .computed_ms = computed_ms});
        return core.on_worker_progress(queue_.now(), local_rank, step);
      });
    });
  }
}

}  // namespace ddp::sim
