#include "tests/sim/checker.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"

namespace ddp::sim {

void Checker::expect(bool holds, const std::string& what) {
  if (!holds && !violation_) violation_ = what;
}

std::size_t Checker::rounds(int life) const {
  std::size_t count = 0;
  for (const auto& [key, world] : worlds_) count += key.first == life ? 1 : 0;
  return count;
}

void Checker::round_start_sent(int life, const NodeId& node_id, const wire::RoundStart& start) {
  const auto key = std::make_pair(life, start.round);
  if (!worlds_.contains(key)) {
    check_budget(life, start);
    check_ranks(start);
    expect(!with_records_ || start.round > newest_,
           fmt::format("round {} comes again after round {}", start.round, newest_));
    newest_ = std::max(newest_, start.round);
    worlds_[key] = start;
  }
  const wire::RoundStart& world = worlds_[key];
  expect(told_[key].insert(node_id).second,
         fmt::format("round {}: node {} was told twice", start.round, node_id));
  bool same = world.members.size() == start.members.size() &&
              world.world_size == start.world_size && world.restarts == start.restarts &&
              world.reason == start.reason;
  const bool one_list = &world.members.all() == &start.members.all();
  for (std::size_t i = 0; same && !one_list && i < world.members.size(); ++i) {
    same = world.members[i].node_id == start.members[i].node_id &&
           world.members[i].first_rank == start.members[i].first_rank &&
           world.members[i].nproc == start.members[i].nproc;
  }
  expect(same, fmt::format("round {}: two worlds", start.round));
  const auto rank = static_cast<std::size_t>(start.group_rank);
  expect(rank < start.members.size() && start.members[rank].node_id == node_id,
         fmt::format("round {}: node {} was given group rank {}", start.round, node_id, rank));
}

void Checker::check_ranks(const wire::RoundStart& start) {
  Rank next = 0;
  std::set<NodeId> nodes;
  for (const wire::Member& member : start.members) {
    expect(member.first_rank == next,
           fmt::format("round {}: ranks are not consecutive", start.round));
    expect(nodes.insert(member.node_id).second,
           fmt::format("round {}: node {} is in twice", start.round, member.node_id));
    next += member.nproc;
  }
  expect(next == start.world_size,
         fmt::format("round {}: {} ranks, world size {}", start.round, next, start.world_size));
  const int count = static_cast<int>(start.members.size());
  expect(count >= job_.rules.min_nodes && count <= job_.rules.max_nodes,
         fmt::format("round {}: {} nodes, allowed are {}:{}", start.round, count,
                     job_.rules.min_nodes, job_.rules.max_nodes));
}

void Checker::check_budget(int life, const wire::RoundStart& start) {
  expect(start.restarts <= job_.rules.max_restarts,
         fmt::format("round {}: {} restarts of {}", start.round, start.restarts,
                     job_.rules.max_restarts));
  const auto later = worlds_.lower_bound({life, start.round});
  expect(later == worlds_.end() || later->first.first != life,
         fmt::format("round {} begins after a later one", start.round));
  // A round costs at most one restart. What nodes know of earlier coordinators comes on top, and
  // the loss of those, at the latest when a node that knows of it joins a round that runs already.
  int before = 0;
  for (const auto& [key, world] : worlds_) {
    if (key.first < life) before = std::max(before, world.restarts);
  }
  const bool first = later == worlds_.lower_bound({life, 0});
  const int previously = first ? 0 : std::prev(later)->second.restarts;
  const int charges = life == 1 ? 1 : 2;
  expect(start.restarts <= before + previously + charges,
         fmt::format("round {} raises the restarts from {} (and {} before this coordinator) to {}",
                     start.round, previously, before, start.restarts));
  if (first) return;
  const wire::RoundStart& previous = std::prev(later)->second;
  const bool for_free = start.reason.find("joined") != std::string::npos ||
                        start.reason.find("takes its place") != std::string::npos ||
                        start.reason.find("left") != std::string::npos ||
                        start.reason.find("was stopped by") != std::string::npos;
  expect(start.restarts > previous.restarts || for_free,
         fmt::format("round {} was not charged for: {}", start.round, start.reason));
}

void Checker::live_workers_at_round_begin(int life, Round round, const NodeId& node_id, int count) {
  expect(count == 0,
         fmt::format("coordinator {} begins round {} while {} workers of an older one live on {}",
                     life, round, count, node_id));
}

void Checker::spawn(int agent, const wire::RoundStart& start, int live) {
  AgentMemory& memory = agents_[agent];
  expect(start.round > memory.round,
         fmt::format("agent {} spawns round {} after round {}", agent, start.round, memory.round));
  expect(start.restarts >= memory.restarts, fmt::format("agent {}: restarts fall from {} to {}",
                                                        agent, memory.restarts, start.restarts));
  expect(live == 0,
         fmt::format("agent {} spawns round {} while {} workers live", agent, start.round, live));
  memory = {start.round, start.restarts};
}

void Checker::worker_succeeded(int life, Round round, Rank rank) {
  succeeded_[{life, round}].insert(rank);
}

void Checker::job_finished(int life, const wire::Finish& finish) {
  expect(finishes_.emplace(life, finish).second,
         fmt::format("coordinator {} finishes twice", life));
  expect(finish.exit_code != kExitCoordinatorLost || life > 1,
         "the first coordinator says that it was lost");
  if (finish.exit_code != 0) {
    expect(!finish.summary.empty(), "a job fails without saying why");
    return;
  }
  // The round may be one that an earlier coordinator began.
  bool complete = false;
  for (const auto& [key, world] : worlds_) {
    if (finish.summary.find(fmt::format("in round {} ", key.second)) == std::string::npos) continue;
    complete |= static_cast<int>(succeeded_[key].size()) == world.world_size;
  }
  expect(complete, "the job succeeds although no round did: " + finish.summary);
}

void Checker::agent_exits(int agent, const config::AgentResult& result, int live,
                          std::optional<int> finish_code) {
  expect(live == 0, fmt::format("agent {} exits while {} of its workers live", agent, live));
  expect(!result.summary.empty(), fmt::format("agent {} exits without saying why", agent));
  const int code = result.exit_code;
  expect(code != kExitRefused || result.last_round == kNoRound ||
             result.summary.find("is over") == std::string::npos,
         fmt::format("agent {} took part in the job and is refused its end", agent));
  // Its own end may come before the job's; nothing else differs from what the coordinator says.
  const bool by_itself = code == kExitJoinTimeout || code == kExitCoordinatorLost ||
                         code == kExitRefused || code == kExitUnfit || code == kExitInternal ||
                         code > kExitSignalBase;
  expect(finish_code == code || by_itself,
         fmt::format("agent {} exits with {}, which nobody told it", agent, code));
}

}  // namespace ddp::sim
