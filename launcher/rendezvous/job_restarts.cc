// Decides whether another round follows a failed one: budget, progress, back-off.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/count_text.h"
#include "common/base/exit_codes.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

constexpr Duration kFirstBackoff{100};
constexpr Duration kMaxBackoff{30'000};
// A round whose workers do not report steps counts as progress if it lasted this long.
constexpr Duration kLongRound{10'000};

Duration backoff(int restarts_in_row) {
  if (restarts_in_row == 0) return Duration{0};
  const int doublings = std::min(restarts_in_row - 1, 16);
  return std::min(kFirstBackoff * (1 << doublings), kMaxBackoff);
}

}  // namespace

void Job::note_progress(Member& member, std::int64_t step, bool reports_progress) {
  if (step >= 0 || reports_progress) {
    member.reports_progress = true;
    round_.reports_steps = true;
  }
  round_.step = std::max(round_.step, step);
  history_.step(now_, step);
  budget_.best_step = std::max(budget_.best_step, step);
}

// Workers are replaced if they failed before their first step, were kept, and failed again before a
// first step. Workers that make steps are kept, even if they only repeat lost steps.
bool Job::keeps_workers() const { return !(round_is_stepless() && budget_.stepless_in_row > 0); }

bool Job::round_is_stepless() const {
  return round_.is_restart && round_.reports_steps && round_.step < 0;
}

// All nodes have ended the round; decides what follows.
void Job::decide_after_stop() {
  const auto primary = std::any_of(round_.failures.all().begin(), round_.failures.all().end(),
                                   [](const wire::Failure& failure) { return !failure.secondary; });
  if (!primary && (!round_.stop.is_failure || !round_.leave_reason.empty())) {
    // If a node left, secondary failures follow from that, whichever was reported first.
    next_start_ = {.reason = round_.leave_reason.empty() ? round_.stop.reason : round_.leave_reason,
                   .not_before = now_};
    return wait_for_nodes();
  }
  const wire::Failure cause = root();
  charge_node(cause);
  if (budget_.best_step > round_.best_at_start) {
    budget_.no_progress = 0;
  } else if (round_.is_restart && round_.reports_steps && !is_node_loss(cause)) {
    ++budget_.no_progress;
  }
  const bool permanent = is_permanent(cause) && !others_are_enough(cause);
  const auto why_not = permanent ? std::optional<std::string>("") : why_not_restarted(cause);
  if (!why_not) return restart_for(cause);
  finish(exit_status(cause), describe(cause) + *why_not, round_report(permanent),
         error_file(cause));
}

// A worker that its kernel holds costs its node alone, where the others are enough for a round: the
// node leaves when the round begins, if it still holds the worker then.
bool Job::others_are_enough(const wire::Failure& stuck) const {
  return stuck.kind == "stuck" &&
         available() - (nodes_.contains(stuck.node_id) ? 1 : 0) >= rules_.min_nodes;
}

// Why there is no restart, as the second half of a sentence; nothing if a restart is possible.
std::optional<std::string> Job::why_not_restarted(const wire::Failure& root) const {
  if (rules_.max_restarts == 0) return "";
  if (budget_.restarts() >= rules_.max_restarts) {
    return fmt::format("; all {} restarts are used up", rules_.max_restarts);
  }
  const auto rank = static_cast<std::size_t>(root.group_rank);
  // A round that an earlier coordinator began may have failed because that was lost.
  if (!rules_.restart_on_start_failure && !round_.is_adopted && budget_.best_step < 0 &&
      round_.members[rank].reports_progress) {
    return "; no worker had made a step, so none is started again (--restart-on-start-failure "
           "restarts them)";
  }
  if (rules_.max_no_progress > 0 && !is_node_loss(root) &&
      budget_.no_progress >= rules_.max_no_progress) {
    return fmt::format("; {} in a row brought no step beyond {} (--max-no-progress)",
                       count_text(budget_.no_progress, "restart"), budget_.best_step);
  }
  return std::nullopt;
}

void Job::restart_for(const wire::Failure& root) {
  ++budget_.own;
  const bool came_to_something = round_.reports_steps ? budget_.best_step > round_.best_at_start
                                                      : now_ - round_.began >= kLongRound;
  if (came_to_something) budget_.restarts_in_row = 0;
  budget_.stepless_in_row = round_is_stepless() ? budget_.stepless_in_row + 1 : 0;
  next_start_ = {.reason = describe(root),
                 .is_charged = true,
                 .not_before = now_ + backoff(budget_.restarts_in_row++)};
  wait_for_nodes();
  // The next round, which is stored, may be long in coming.
  if (phase_ == Phase::kWaiting) persist();
}

// Charges a restart because a lost coordinator's round did not go on under this one. False if the
// budget is used up, and the job is then over.
bool Job::charge_lost_coordinator() {
  if (earlier_.loss_to_charge && !earlier_.loss_is_charged) {
    earlier_.loss_is_charged = true;
    ++budget_.own;
    next_start_ = {
        .reason = "the rendezvous was lost and came back", .is_charged = true, .not_before = now_};
  }
  earlier_.loss_to_charge = false;
  if (budget_.restarts() <= rules_.max_restarts) return true;
  finish(kExitCoordinatorLost,
         fmt::format("the rendezvous was lost in round {} and the budget of {} restarts is used up",
                     next_round_ - 1, rules_.max_restarts),
         "");
  return false;
}

}  // namespace ddp::rendezvous
