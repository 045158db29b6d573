// What goes wrong in a history of replicas: crashes, stops, cuts, resets, and slow or lossy links.
#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/replicas_simulation.h"

namespace ddp::sim {
namespace {

// A crash in a gentle history comes only when the voters have been mended after the one before.
constexpr Duration kBetweenCrashes{6'000};
constexpr Duration kLease{1'000};

}  // namespace

// In a gentle history, one is lost at a time. With three nodes, a voter that the coordinator has
// not heard for long, because messages are lost or late, counts as lost, too. No other node can get
// its vote, so the vote is taken away, and until that is done the two others must agree to
// everything: if one of them ends then, nobody can ever decide again, even when the third is back.
bool ReplicasSimulation::may_crash() const {
  if (!gentle_) return true;
  if (queue_.now() - last_crash_ < kBetweenCrashes || !cut_.empty() ||
      static_cast<int>(living().size()) != nodes_) {
    return false;
  }
  for (const int index : living()) {
    if (processes_[static_cast<std::size_t>(index)].stopped_until > queue_.now()) return false;
  }
  for (const int index : living()) {
    const replicas::JobReplica& replica = *processes_[static_cast<std::size_t>(index)].replica;
    const auto servers = replica.servers();
    const bool is_whole = std::all_of(servers.begin(), servers.end(), [&](const auto& server) {
      const Process& process = processes_[server.id - 1];
      return server.votes && process.alive && process.replica->servers() == servers;
    });
    const bool nobody_is_missed = nodes_ > 3 || replica.is_settled();
    if (replica.leads() && servers.size() >= 3 && is_whole && nobody_is_missed) return true;
  }
  return false;
}

void ReplicasSimulation::crash(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  log(fmt::format("p{} crashes", index));
  ++coverage_->crashes;
  if (process.replica->leads() && process.office > 1) without_coordinator_since_ = queue_.now();
  process.alive = false;
  last_crash_ = queue_.now();
  by_port_.erase(process.port);
  // The kernel closes its connections, unless the machine is gone, too.
  const bool is_silent = random_.one_in(3);
  if (process.joined_to >= 0) {
    queue_.after(is_silent ? kLease : Duration(0), [this, index] { disconnect_agent(index); });
  }
  if (!is_silent) close_connections(index);
  for (const int other : living()) {
    if (processes_[static_cast<std::size_t>(other)].joined_to == index) disconnect_agent(other);
  }
  const int node = process.node;
  queue_.after(random_.ms(10, 4'000), [this, node] {
    for (const int other : living()) {
      if (processes_[static_cast<std::size_t>(other)].node == node) return;
    }
    start(node);
  });
}

// As the others see it.
void ReplicasSimulation::close_connections(int index) {
  const Process& process = processes_[static_cast<std::size_t>(index)];
  const HostPort at = place(process.node, process.port);
  for (const int other : living()) {
    if (other == index || !reaches(index, other)) continue;
    queue_.after(random_.ms(0, max_delay_ms_), [this, other, at] {
      Process& peer = processes_[static_cast<std::size_t>(other)];
      if (peer.alive && peer.stopped_until <= queue_.now()) {
        peer.replica->on_closed(clock(peer), at);
      }
    });
  }
}

// What is under way is lost with them. Both sides can connect again at once.
void ReplicasSimulation::reset_connections(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  log(fmt::format("the connections of p{} are reset", index));
  ++coverage_->resets;
  ++process.resets;
  close_connections(index);
  disconnect_agent(index);
  for (const int other : living()) {
    const Process& peer = processes_[static_cast<std::size_t>(other)];
    if (peer.joined_to == index) disconnect_agent(other);
    if (other == index || process.stopped_until > queue_.now()) continue;
    process.replica->on_closed(clock(process), place(peer.node, peer.port));
  }
}

void ReplicasSimulation::fault() {
  if (faults_are_over_) return;
  queue_.after(random_.ms(100, 2'000), [this] { fault(); });
  const auto alive = living();
  if (alive.empty()) return;
  const int victim = alive[static_cast<std::size_t>(
      random_.between(0, static_cast<std::int64_t>(alive.size()) - 1))];
  const int node = processes_[static_cast<std::size_t>(victim)].node;
  const auto other = static_cast<int>(random_.between(0, nodes_ - 1));
  switch (random_.between(0, has_resets_ ? 10 : 9)) {
    case 0:
    case 1:
      if (may_crash()) crash(victim);
      break;
    case 2:
      log(fmt::format("p{} stops", victim));
      processes_[static_cast<std::size_t>(victim)].stopped_until =
          queue_.now() + random_.ms(100, 3'000);
      break;
    case 3:  // A node is cut off.
      log(fmt::format("n{} is cut off", node));
      for (int i = 0; i < nodes_; ++i) {
        if (i != node) cut_.insert({{node, i}, {i, node}});
      }
      break;
    case 4:
      log(fmt::format("nothing comes from n{} to n{}", node, other));
      if (other != node) cut_.insert({node, other});
      break;
    case 9:
      log(fmt::format("p{} hands over", victim));
      processes_[static_cast<std::size_t>(victim)].replica->hand_over();
      break;
    case 10:
      reset_connections(victim);
      break;
    case 5:
    case 6:
    case 7:
      log("nobody is cut off any more");
      cut_.clear();
      break;
    default:
      loss_percent_ = random_.one_in(2) ? random_.between(0, 30) : 0;
      max_delay_ms_ = random_.one_in(2) ? random_.between(1, 400) : 5;
      log(fmt::format("{}% of the messages are lost, others come within {} ms", loss_percent_,
                      max_delay_ms_));
  }
}

}  // namespace ddp::sim
