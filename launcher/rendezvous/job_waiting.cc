// How a job gathers its nodes: waiting, last call, the start of a round, and the messages about it.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/host_port.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/ranks.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

// Limit of the names in a message, because every node gets that message.
constexpr std::size_t kHostsMax = 64;
// Limit of the lost ranks in a message, so that an agent can pass them on in one line.
constexpr std::size_t kLostRanksTold = 512;
// How long a round waits for lost nodes of the round before.
constexpr Duration kReturnGrace{1'000};
// Larger jobs do not announce every change at once, because nodes come in thousands.
constexpr std::size_t kSmallJob = 16;
constexpr Duration kAnnouncementGap{1'000};

// Whole seconds until `then`, rounded up.
std::int64_t seconds_left(TimePoint now, TimePoint then) {
  const auto left = std::chrono::duration_cast<Duration>(then - now).count();
  return std::max<std::int64_t>(0, (left + 999) / 1'000);
}

}  // namespace

// The first of the hosts, in natural order.
std::vector<std::string> Job::hosts() const {
  std::vector<std::string> names;
  for (const auto& [node_id, node] : nodes_) {
    if (!node.ending) names.push_back(node.join.host);
  }
  const auto shown = std::min(names.size(), kHostsMax);
  std::partial_sort(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), names.end(),
                    natural_less);
  names.resize(shown);
  return names;
}

void Job::wait_for_nodes() {
  phase_ = Phase::kWaiting;
  gathering_ = {.since = now_};
  try_start();
  announce();
}

// Nodes that left do not count, because they do not come back.
bool Job::all_previous_are_in() const {
  bool any = false;
  for (const Member& member : round_.members) {
    if (member.presence == Member::Presence::kLeft) continue;
    const auto found = nodes_.find(member.info.node_id);
    if (found == nodes_.end() || found->second.ending) return false;
    any = true;
  }
  return any;
}

// How long to wait for more nodes than the job needs. Lost nodes come back at once or not soon, so
// one that has been silent for long is not waited for. Nodes that lost their coordinator may not
// have noticed it yet.
Duration Job::longest_wait() const {
  if (round_.number == kNoRound)
    return earlier_.began_rounds ? return_limit() : Duration{rules_.last_call_ms};
  // Nodes are coming.
  if (now_ > gathering_.since) return kReturnGrace;
  TimePoint until = now_;
  for (const Member& member : round_.members) {
    if (member.presence == Member::Presence::kLeft) continue;
    const auto node = nodes_.find(member.info.node_id);
    if (node == nodes_.end()) {
      until = std::max(until, member.gone_since + kReturnGrace);
    } else if (node->second.ending) {
      until = std::max(until, now_ + kReturnGrace);
    }
  }
  return std::chrono::duration_cast<Duration>(until - now_);
}

void Job::try_start() {
  if (phase_ != Phase::kWaiting) return;
  const int have = available();
  if (have < rules_.min_nodes) {
    gathering_.last_call_ends.reset();
    return;
  }
  if (!gathering_.last_call_ends)
    gathering_.last_call_ends = now_ + std::min(Duration{rules_.last_call_ms}, longest_wait());
  if (now_ < next_start_.not_before) return;
  if (have >= rules_.max_nodes || now_ >= *gathering_.last_call_ends || all_previous_are_in())
    start_round();
}

// Nothing of the round before gets into this one, except that people are still told why it failed.
void Job::begin_round(Round number, std::vector<Member> members) {
  if (!round_.failures.empty()) last_failure_.emplace(round_.number, root());
  round_ = {.number = number,
            .members = std::move(members),
            .began = now_,
            .best_at_start = budget_.best_step};
  refused_.reset();
  for (const Member& member : round_.members) {
    round_.rank_of_node[member.info.node_id] = rank_of(member);
    round_.world_size += member.info.nproc;
  }
  lateness_.begin_round(now_, round_.world_size);
  history_.begin_round(now_, number, round_.members.size(), round_.world_size,
                       phase_ == Phase::kRecovering ? "" : next_start_.reason);
}

// Of the last round. A node that came back as another one has lost its processes, too.
std::vector<Rank> Job::lost_ranks() const {
  std::vector<Rank> lost;
  for (const Member& member : round_.members) {
    if (member.presence != Member::Presence::kLost || nodes_.contains(member.info.node_id))
      continue;
    for (int i = 0; i < member.info.nproc; ++i) lost.push_back(member.info.first_rank + i);
  }
  if (lost.size() > kLostRanksTold) lost.clear();
  return lost;
}

void Job::start_round() {
  if (!charge_lost_coordinator()) return;
  leave_out_failing();
  std::vector<Candidate> candidates;
  for (const auto& [node_id, node] : nodes_) {
    if (node.ending) continue;
    const Member* previous = member_of(node_id);
    candidates.push_back({.node_id = node_id,
                          .host = node.join.host,
                          .wanted = node.join.node_rank,
                          .previous = previous ? static_cast<int>(rank_of(*previous)) : -1,
                          .order = node.order,
                          .excluded = is_excluded(node_id)});
  }
  const auto limit = static_cast<std::size_t>(rules_.max_nodes);
  const auto by_rank = assign_group_ranks(choose_members(std::move(candidates), limit));

  phase_ = Phase::kRunning;
  for (auto& [node_id, node] : nodes_) {  // Spares, too: what they did in a round is over.
    node.step = -1;
    node.loss = node.samples_per_second = std::numeric_limits<double>::quiet_NaN();
    node.loss_is.clear();
    node.total_steps = 0;
    node.pace = {};
  }
  std::vector<Member> members;
  std::vector<wire::Member> infos;
  Rank next_rank = 0;
  bool needs_own_store = false;
  for (const Candidate& candidate : by_rank) {
    const Node& node = nodes_.at(candidate.node_id);
    Member member;
    member.info = {.node_id = candidate.node_id,
                   .host = candidate.host,
                   .address = node.address,
                   .nproc = node.join.nproc,
                   .first_rank = next_rank,
                   .role = node.join.role};
    member.node_rank = node.join.node_rank;
    next_rank += node.join.nproc;
    needs_own_store = needs_own_store || node.join.needs_own_store;
    infos.push_back(member.info);
    members.push_back(std::move(member));
  }
  wire::RoundStart start;
  start.lost_round = round_.number;
  start.lost_ranks = lost_ranks();
  begin_round(next_round_++, std::move(members));
  round_.is_restart = next_start_.is_charged;
  start.round = round_.number;
  start.restarts = budget_.restarts();
  start.max_restarts = rules_.max_restarts;
  start.world_size = round_.world_size;
  if (needs_own_store) start.store_port = nodes_.at(infos.front().node_id).join.store_port;
  start.members = wire::MemberList(std::move(infos));
  start.reason = next_start_.reason;
  if (next_start_.is_charged) {
    start.reason += fmt::format("; restart {} of {}", budget_.restarts(), rules_.max_restarts);
  }
  persist();
  out_->emplace_back(RoundBegins{id_, round_.number});
  for (const Member& member : round_.members) {
    send(nodes_.at(member.info.node_id).connection, start);
    ++start.group_rank;
  }
  send_spares(newcomers(), spare_text());
}

std::string Job::spare_text() const {
  return fmt::format(
      "round {} runs on {} nodes; this node is a spare and takes the place of one that is lost",
      round_.number, round_.members.size());
}

void Job::send_spares(const std::vector<const Node*>& nodes, const std::string& text) {
  if (nodes.empty()) return;
  const wire::Waiting waiting{available(), rules_.min_nodes, rules_.max_nodes, hosts(), text};
  for (const Node* node : nodes) send(node->connection, waiting);
}

// The missing nodes, as far as they are known.
std::string Job::missing_detail() const {
  std::vector<std::string> lost;
  for (const Member& member : round_.members) {
    const bool awaited = member.presence != Member::Presence::kLeft;
    if (awaited && !nodes_.contains(member.info.node_id)) lost.push_back(member.info.host);
  }
  if (!lost.empty()) return fmt::format(" (lost: {}; start ddp-run there again)", some_of(lost));
  std::set<int> ranks;
  for (int rank = 0; rank < rules_.min_nodes; ++rank) ranks.insert(rank);
  for (const auto& [node_id, node] : nodes_) {
    if (node.join.node_rank < 0) return "";
    ranks.erase(node.join.node_rank);
  }
  if (nodes_.empty() || ranks.empty()) return "";
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  return fmt::format(" (node rank {})", some_of(names));
}

std::string Job::waiting_text(TimePoint now) const {
  const int have = available();
  const std::string names = have == 0 ? "" : fmt::format(" ({})", some_of(hosts()));
  const std::string_view are = have == 1 ? "is" : "are";
  if (gathering_.last_call_ends && next_start_.not_before > now) {
    return fmt::format("{} of {} nodes {} in{}; the next round begins in {} s", have,
                       rules_.max_nodes, are, names, seconds_left(now, next_start_.not_before));
  }
  if (gathering_.last_call_ends) {
    return fmt::format("{} of {} nodes {} in{}, enough to start; waiting {} s more for others",
                       have, rules_.max_nodes, are, names,
                       seconds_left(now, *gathering_.last_call_ends));
  }
  return fmt::format("{} of {}{} nodes {} in{}; {} missing{}, {} s left", have,
                     rules_.min_nodes < rules_.max_nodes ? "at least " : "", rules_.min_nodes, are,
                     names, rules_.min_nodes - have, missing_detail(),
                     seconds_left(now, gathering_.since + Duration{rules_.join_timeout_ms})) +
         turned_away_text() + other_jobs_text();
}

bool Job::waits_for_its_first_round() const {
  return phase_ == Phase::kWaiting && next_round_ == 0 && !nodes_.empty() &&
         !gathering_.last_call_ends;
}

// Nodes that were given different names for their job wait for each other, each in a job of its
// own.
std::string Job::other_jobs_text() const {
  if (!waits_for_its_first_round()) return "";
  std::vector<std::string> others = waiting_jobs_();
  std::erase(others, id_);
  if (others.empty()) return "";
  const bool one = others.size() == 1;
  return fmt::format(
      "; {} {} {} for nodes here, too, and this is job {}: nodes of one job need the same "
      "--rdzv-id",
      one ? "job" : "jobs", some_of(others), one ? "waits" : "wait", id_);
}

void Job::announce() {
  if (phase_ != Phase::kWaiting) return;
  if (nodes_.size() > kSmallJob && now_ < last_announcement_ + kAnnouncementGap) {
    next_announcement_ = std::min(next_announcement_, last_announcement_ + kAnnouncementGap);
    return;
  }
  last_announcement_ = now_;
  next_announcement_ = now_ + options_.waiting_repeat;
  if (nodes_.empty()) return;
  const wire::Waiting waiting{available(), rules_.min_nodes, rules_.max_nodes, hosts(),
                              waiting_text(now_)};
  for (const auto& [node_id, node] : nodes_) send(node.connection, waiting);
}

// Nodes that never came may have gone elsewhere. If all came over loopback, the endpoint probably
// is localhost, by which each machine means itself.
std::string Job::advice_for_first_round() const {
  const bool all_are_here = !nodes_.empty() && std::ranges::all_of(nodes_, [](const auto& node) {
    return is_loopback(node.second.address);
  });
  std::string text = options_.has_token
                         ? "; each node needs the same --rdzv-endpoint, --rdzv-id and token "
                           "(--rdzv-token-file or DDP_RDZV_TOKEN)"
                         : "; each node needs the same --rdzv-endpoint and --rdzv-id";
  if (all_are_here) {
    text +=
        "; an endpoint on localhost or another loopback address is another machine on each node: "
        "name a host that all nodes reach";
  }
  return text;
}

void Job::finish_for_missing_nodes() {
  const int have = available();
  std::string summary =
      fmt::format("only {} of {}{} nodes came to job {} within {} s; in: {}; {} missing{}", have,
                  rules_.min_nodes < rules_.max_nodes ? "at least " : "", rules_.min_nodes, id_,
                  rules_.join_timeout_ms / 1'000, have == 0 ? "none" : some_of(hosts()),
                  rules_.min_nodes - have, missing_detail());
  summary += turned_away_text();
  if (next_round_ == 0 && !refused_) {
    summary += advice_for_first_round();
  }
  std::string report;
  std::string error;
  if (!round_.failures.empty()) {
    summary += fmt::format("; before that, {}", describe(root()));
    report = round_report(false);
    error = error_file(root());
  }
  finish(kExitJoinTimeout, summary, report, error);
}

}  // namespace ddp::rendezvous
