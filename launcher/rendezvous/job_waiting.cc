// How a job gets its nodes together: waiting, last call, the start of a round, and what people are
// told.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/ranks.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kNamesMax = 16;

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesMax) text += fmt::format(" and {} more", names.size() - kNamesMax);
  return text;
}

// Whole seconds until `then`, rounded up.
std::int64_t seconds_left(TimePoint now, TimePoint then) {
  const auto left = std::chrono::duration_cast<Duration>(then - now).count();
  return std::max<std::int64_t>(0, (left + 999) / 1'000);
}

}  // namespace

std::vector<std::string> Job::hosts() const {
  std::vector<std::string> names;
  for (const auto& [node_id, node] : nodes_) names.push_back(node.join.host);
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

void Job::wait_for_nodes() {
  phase_ = Phase::kWaiting;
  waiting_since_ = now_;
  last_call_ends_.reset();
  try_start();
  announce();
}

bool Job::all_previous_are_in() const {
  bool any = false;
  for (const Member& member : members_) {
    if (member.presence == Member::Presence::kLeft) continue;
    if (!nodes_.contains(member.info.node_id)) return false;
    any = true;
  }
  return any;
}

void Job::try_start() {
  if (phase_ != Phase::kWaiting) return;
  const int have = static_cast<int>(nodes_.size());
  if (have < min_nodes_) {
    last_call_ends_.reset();
    return;
  }
  if (!last_call_ends_) last_call_ends_ = now_ + last_call_;
  if (have >= max_nodes_ || all_previous_are_in() || now_ >= *last_call_ends_) start_round();
}

void Job::start_round() {
  std::vector<Candidate> candidates;
  for (const auto& [node_id, node] : nodes_) {
    const Member* previous = member_of(node_id);
    candidates.push_back({.node_id = node_id,
                          .host = node.join.host,
                          .wanted = node.join.node_rank,
                          .previous = previous ? static_cast<int>(previous - members_.data()) : -1,
                          .order = node.order});
  }
  const auto limit = static_cast<std::size_t>(max_nodes_);
  const auto by_rank = assign_group_ranks(choose_members(std::move(candidates), limit));

  phase_ = Phase::kRunning;
  round_ = next_round_++;
  failures_.clear();
  cause_deadline_.reset();
  stop_reason_.clear();
  leave_reason_.clear();
  world_size_ = 0;
  members_.clear();
  wire::RoundStart start;
  start.round = round_;
  start.restarts = restarts();
  start.max_restarts = max_restarts_;
  for (const Candidate& candidate : by_rank) {
    Node& node = nodes_.at(candidate.node_id);
    node.step = -1;
    Member member;
    member.info = {candidate.node_id, candidate.host, node.address, node.join.nproc, world_size_};
    world_size_ += node.join.nproc;
    start.members.push_back(member.info);
    members_.push_back(std::move(member));
  }
  start.world_size = world_size_;
  start.reason = reason_;
  if (reason_is_charged_) {
    start.reason += fmt::format("; restart {} of {}", restarts(), max_restarts_);
  }
  out_->push_back(RoundBegins{id_, round_});
  for (const Member& member : members_) {
    send(nodes_.at(member.info.node_id).connection, start);
    ++start.group_rank;
  }
  for (const auto& [node_id, node] : nodes_) {
    if (member_of(node_id) == nullptr) send_spare(node);
  }
}

void Job::send_spare(const Node& node) {
  send(node.connection,
       wire::Waiting{static_cast<int>(nodes_.size()), min_nodes_, max_nodes_, hosts(),
                     fmt::format("round {} runs on {} nodes; this node is a spare and takes the "
                                 "place of one that is lost",
                                 round_, members_.size())});
}

// Which nodes are missing, as far as that can be known.
std::string Job::missing_detail() const {
  std::vector<std::string> lost;
  for (const Member& member : members_) {
    const bool awaited = member.presence != Member::Presence::kLeft;
    if (awaited && !nodes_.contains(member.info.node_id)) lost.push_back(member.info.host);
  }
  if (!lost.empty()) return fmt::format(" (lost: {})", join_names(lost));
  std::set<int> ranks;
  for (int rank = 0; rank < min_nodes_; ++rank) ranks.insert(rank);
  for (const auto& [node_id, node] : nodes_) {
    if (node.join.node_rank < 0) return "";
    ranks.erase(node.join.node_rank);
  }
  if (nodes_.empty() || ranks.empty()) return "";
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  return fmt::format(" (node rank {})", join_names(names));
}

std::string Job::waiting_text(TimePoint now) const {
  const int have = static_cast<int>(nodes_.size());
  const std::string names = have == 0 ? "" : fmt::format(" ({})", join_names(hosts()));
  const std::string_view are = have == 1 ? "is" : "are";
  if (last_call_ends_) {
    return fmt::format("{} of {} nodes {} in{}, enough to start; waiting {} s more for others",
                       have, max_nodes_, are, names, seconds_left(now, *last_call_ends_));
  }
  return fmt::format("{} of {}{} nodes {} in{}; {} missing{}, {} s left", have,
                     min_nodes_ < max_nodes_ ? "at least " : "", min_nodes_, are, names,
                     min_nodes_ - have, missing_detail(),
                     seconds_left(now, waiting_since_ + join_timeout_));
}

void Job::announce() {
  if (phase_ != Phase::kWaiting) return;
  next_announcement_ = now_ + options_.waiting_repeat;
  if (nodes_.empty()) return;
  const wire::Waiting waiting{static_cast<int>(nodes_.size()), min_nodes_, max_nodes_, hosts(),
                              waiting_text(now_)};
  for (const auto& [node_id, node] : nodes_) send(node.connection, waiting);
}

void Job::finish_for_missing_nodes() {
  const int have = static_cast<int>(nodes_.size());
  std::string summary =
      fmt::format("only {} of {}{} nodes came within {} s; in: {}; {} missing{}", have,
                  min_nodes_ < max_nodes_ ? "at least " : "", min_nodes_,
                  std::chrono::duration_cast<std::chrono::seconds>(join_timeout_).count(),
                  have == 0 ? "none" : join_names(hosts()), min_nodes_ - have, missing_detail());
  std::string report;
  if (!failures_.empty()) {
    summary += fmt::format("; before that, {}", describe(failures_[root_cause(failures_)]));
    report = round_report(false);
  }
  finish(kExitJoinTimeout, summary, report);
}

}  // namespace ddp::rendezvous
