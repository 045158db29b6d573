#include "launcher/slurm/step/requeue.h"

#include <csignal>

#include "common/base/exit_codes.h"

namespace ddp::slurm {
namespace {

// SLURM's clock and ours may differ a little, and SLURM rounds down to seconds.
constexpr std::int64_t kClockSlack = 2;

}  // namespace

bool is_to_be_continued(const Stop& stop, const std::optional<std::int64_t>& end_time) {
  if (stop.exit_code == kExitSuccess) return false;
  if (stop.warned) return true;
  if (stop.warning != 0 && stop.exit_code == kExitSignalBase + stop.warning) return true;
  if (stop.exit_code != kExitSignalBase + SIGTERM || !stop.has_checkpoint) return false;
  if (stop.at_time_limit) return true;
  return stop.terminated && end_time && stop.now + kClockSlack >= *end_time;
}

}  // namespace ddp::slurm
