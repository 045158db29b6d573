// Ranks that are late (lateness.h): who is told, and how a spare takes the place of their node.
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "common/base/duration_text.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

// A node is left out at most once in this time, and takes nobody's place meanwhile. So nodes do not
// change places for ever if the place is slow and not the node.
constexpr Duration kExclusionLasts{3'600'000};
// How many ranks the report remembers.
constexpr std::size_t kRemembered = 1'024;

std::string milliseconds(double ms) { return fmt::format("{:.{}f} ms", ms, ms < 10 ? 1 : 0); }

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

const Job::Member& Job::member_with(Rank rank) const {
  const auto after = std::upper_bound(
      round_.members.begin(), round_.members.end(), rank,
      [](Rank wanted, const Member& member) { return wanted < member.info.first_rank; });
  return *std::prev(after);
}

std::string Job::rank_text(Rank rank) const {
  return fmt::format("rank {} ({})", rank, member_with(rank).info.host);
}

void Job::note_computed(const Member& member, const wire::Heartbeat& message) {
  if (phase_ != Phase::kRunning) return;
  const Round round = round_.number;
  const auto workers =
      std::min(message.computed.size(), static_cast<std::size_t>(member.info.nproc));
  for (std::size_t i = 0; i < workers; ++i) {
    const wire::Computed& computed = message.computed[i];
    const Rank rank = member.info.first_rank + static_cast<Rank>(i);
    const auto changes = lateness_.report(now_, rank, computed.step, computed.ms);
    if (!changes) continue;
    tell_changes(*changes);
    exclude_straggler();
    // `member` may be gone with its round.
    if (phase_ != Phase::kRunning || round_.number != round) return;
  }
}

void Job::tell_changes(const Lateness::Changes& changes) {
  const auto worst = std::max_element(
      changes.began.begin(), changes.began.end(),
      [](const Lateness::Late& a, const Lateness::Late& b) { return a.ratio() < b.ratio(); });
  if (worst != changes.began.end()) {
    std::string text =
        fmt::format("{} is late: it computes {} a step, the others {} (median), for {:.0f} s now",
                    rank_text(worst->rank), milliseconds(worst->computes_ms),
                    milliseconds(worst->others_ms), seconds(now_ - worst->since));
    std::vector<std::string> others;
    for (const Lateness::Late& late : changes.began) {
      if (late.rank != worst->rank) others.push_back(rank_text(late.rank));
    }
    if (!others.empty()) text += fmt::format("; so are {}", some_of(others));
    notify(text);
  }
  std::vector<std::string> ended;
  for (const Lateness::Late& late : changes.ended) {
    ended.push_back(rank_text(late.rank));
    remember_late(late);
  }
  if (!ended.empty()) {
    notify(fmt::format("{} {} no longer late", some_of(ended), ended.size() == 1 ? "is" : "are"));
  }
}

// To one terminal, so that the line is there once.
void Job::notify(const std::string& text) {
  for (const Member& member : round_.members) {
    const auto node = nodes_.find(member.info.node_id);
    if (member.presence != Member::Presence::kIn || node == nodes_.end()) continue;
    return send(node->second.connection, wire::Notice{text});
  }
}

void Job::remember_late(const Lateness::Late& late) {
  const auto length = std::chrono::duration_cast<Duration>(now_ - late.since);
  const std::string who = rank_text(late.rank);
  if (was_late_.size() < kRemembered || was_late_.contains(who)) was_late_[who] += length;
}

void Job::close_lateness() {
  for (const auto& [rank, late] : lateness_.late()) remember_late(late);
  lateness_.begin_round(now_, 0);
}

// "rank 3 (node2) was late for 1:20; rank 5 (node3) for 0:31"; empty if none was.
std::string Job::lateness_text() const {
  std::vector<std::pair<Duration, std::string>> longest;
  for (const auto& [who, length] : was_late_) longest.emplace_back(length, who);
  std::stable_sort(longest.begin(), longest.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& [length, who] : longest) {
    texts.push_back(fmt::format("{} {}for {}", who, texts.empty() ? "was late " : "",
                                duration_text(seconds(length))));
  }
  return some_of(texts);
}

bool Job::is_excluded(const NodeId& node_id) const {
  const auto found = excluded_.find(node_id);
  return found != excluded_.end() && now_ - found->second < kExclusionLasts;
}

// The first spare that may take a place; null if none waits.
const Job::Node* Job::substitute() const {
  for (const Node* node : newcomers()) {
    if (!is_excluded(node->join.node_id)) return node;
  }
  return nullptr;
}

// As before a new node comes in, the workers commit first.
void Job::exclude_straggler() {
  const auto late = lateness_.beyond_limit();
  if (!late || round_.scale_up || round_.cause_deadline || round_.successes > 0) return;
  const Member& member = member_with(late->rank);
  if (is_excluded(member.info.node_id)) return;
  const Node* const spare = substitute();
  if (spare == nullptr) {
    if (std::exchange(round_.lacks_substitute, true)) return;
    return notify(
        fmt::format("{} stays, although it is late: no spare waits to take its place "
                    "(--exclude-stragglers)",
                    rank_text(late->rank)));
  }
  begin_scale_up(
      fmt::format("{} is late; {} takes its place", rank_text(late->rank), spare->join.host),
      member.info.node_id);
}

// All have committed, or the time for that is over.
void Job::replace_straggler(const ScaleUp& change) {
  if (substitute() == nullptr) return;
  excluded_[change.instead_of] = now_;
  begin_stop(change.reason, false);
}

}  // namespace ddp::rendezvous
