// Decides whether another round follows a failed one: budget, progress, back-off.
#include <algorithm>

#include <fmt/format.h>

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
    round_reports_ = true;
  }
  round_step_ = std::max(round_step_, step);
  best_step_ = std::max(best_step_, step);
}

// Workers are replaced if they failed before their first step, were kept, and failed again before a
// first step. Workers that make steps are kept, even if they only repeat lost steps.
bool Job::keeps_workers() const { return !(round_is_stepless() && stepless_in_row_ > 0); }

bool Job::round_is_stepless() const {
  return round_is_restart_ && round_reports_ && round_step_ < 0;
}

// All nodes have ended the round; decides what follows.
void Job::decide_after_stop() {
  const auto primary = std::any_of(failures_.all().begin(), failures_.all().end(),
                                   [](const wire::Failure& failure) { return !failure.secondary; });
  if (!primary && (!stop_is_failure_ || !leave_reason_.empty())) {
    // If a node left, secondary failures follow from that, whichever was reported first.
    reason_ = leave_reason_.empty() ? stop_reason_ : leave_reason_;
    reason_is_charged_ = false;
    return wait_for_nodes();
  }
  const wire::Failure cause = root();
  if (best_step_ > best_at_start_) {
    no_progress_ = 0;
  } else if (round_is_restart_ && round_reports_) {
    ++no_progress_;
  }
  const bool permanent = is_permanent(cause);
  const auto why_not = permanent ? std::optional<std::string>("") : why_not_restarted(cause);
  if (!why_not) return restart_for(cause);
  finish(exit_status(cause), describe(cause) + *why_not, round_report(permanent),
         error_file(cause));
}

// Why there is no restart, as the second half of a sentence; nothing if a restart is possible.
std::optional<std::string> Job::why_not_restarted(const wire::Failure& root) const {
  if (rules_.max_restarts == 0) return "";
  if (restarts() >= rules_.max_restarts) {
    return fmt::format("; all {} restarts are used up", rules_.max_restarts);
  }
  const auto rank = static_cast<std::size_t>(root.group_rank);
  if (!rules_.restart_on_start_failure && best_step_ < 0 && members_[rank].reports_progress) {
    return "; no worker had made a step, so none is started again (--restart-on-start-failure "
           "restarts them)";
  }
  if (rules_.max_no_progress > 0 && no_progress_ >= rules_.max_no_progress) {
    return fmt::format("; {} in a row brought no step beyond {} (--max-no-progress)",
                       counted(no_progress_, "restart"), best_step_);
  }
  return std::nullopt;
}

void Job::restart_for(const wire::Failure& root) {
  ++own_restarts_;
  reason_ = describe(root);
  reason_is_charged_ = true;
  const bool came_to_something =
      round_reports_ ? best_step_ > best_at_start_ : now_ - round_began_ >= kLongRound;
  if (came_to_something) restarts_in_row_ = 0;
  stepless_in_row_ = round_is_stepless() ? stepless_in_row_ + 1 : 0;
  start_at_ = now_ + backoff(restarts_in_row_++);
  wait_for_nodes();
}

// Charges a restart because a lost coordinator's round did not go on under this one. False if the
// budget is used up, and the job is then over.
bool Job::charge_lost_coordinator() {
  if (loss_to_charge_ && !coordinator_loss_charged_) {
    coordinator_loss_charged_ = true;
    ++own_restarts_;
    reason_ = "the rendezvous was lost and came back";
    reason_is_charged_ = true;
  }
  loss_to_charge_ = false;
  if (restarts() <= rules_.max_restarts) return true;
  finish(kExitCoordinatorLost,
         fmt::format("the rendezvous was lost in round {} and the budget of {} restarts is used up",
                     next_round_ - 1, rules_.max_restarts),
         "");
  return false;
}

}  // namespace ddp::rendezvous
