#include <unistd.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"
#include "worker/checkpoint/tool/target.h"

namespace ddp::checkpoint {

const char kPruneHelp[] =
    "usage: ddp-checkpoint prune DIR --keep N [--keep-every M] [--dry-run]\n"
    "Removes checkpoints in the folder DIR that are older than the N newest good ones. Verifies "
    "these\n"
    "first, byte by byte. Damaged ones do not count, and the newest good one always stays. "
    "Damaged\n"
    "ones that are newer than the oldest one kept are listed, but not removed.\n"
    "  --keep N          how many to keep, at least 1\n"
    "  --keep-every M    also keeps steps divisible by M, however old\n"
    "  --dry-run         only prints what would be removed\n"
    "Refused while a job writes to DIR: ddp-train's --checkpoint-keep does the same while it "
    "runs.\n"
    "Exit status 65 if there is no valid checkpoint, 68 if the folder is in use or something "
    "cannot "
    "be\nremoved.\n";

namespace {

// Reads checkpoints from the newest on until enough of them are good, and marks the damaged ones.
// Returns the newest good one.
std::optional<Entry> verify_newest(Target& target, std::int64_t enough, std::ostream& err) {
  std::optional<Entry> newest;
  for (const Entry& entry : target.entries) {
    if (enough <= 0) break;
    if (auto manifest = target.directory.verify(entry)) {
      --enough;
      if (!newest) newest = entry;
    } else {
      target.directory.mark_bad(entry);
      err << fmt::format("{} is damaged and does not count: {}\n", entry.path,
                         manifest.error().message);
    }
  }
  return newest;
}

int prune(Target& target, const Retention& retention, const Entry& newest, bool is_dry,
          std::ostream& out, std::ostream& err) {
  auto superfluous = target.directory.superfluous(retention, newest);
  if (!superfluous) return report("prune", superfluous.error(), kExitDataInvalid, err);
  std::vector<std::string> complaints;
  if (!is_dry) complaints = target.directory.prune(retention, newest);
  for (const std::string& complaint : complaints) err << complaint << '\n';
  auto left = target.directory.list();
  std::size_t removed = 0;
  for (const Entry& entry : *superfluous) {
    const bool is_there =
        left && std::any_of(left->begin(), left->end(),
                            [&entry](const Entry& other) { return other.name == entry.name; });
    if (!is_dry && is_there) continue;
    ++removed;
    out << fmt::format("{}: {}\n", entry.path, is_dry ? "would be removed" : "removed");
  }
  out << fmt::format("{} of {} {}; the newest good one is {}\n", removed, target.entries.size(),
                     is_dry ? "would be removed" : "removed", newest.path);
  return complaints.empty() ? kExitSuccess : kExitCheckpointUnwritable;
}

}  // namespace

int run_prune(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({"prune", {"DIR"}, {"keep", "keep-every"}, {"dry-run"}}, arguments);
  if (!parsed) return report_usage("prune", parsed.error(), err);
  if (!parsed->has("keep")) {
    return report_usage("prune", make_error(Errc::kInvalidArgument, "--keep N is needed"), err);
  }
  auto keep = integer_option(*parsed, "keep", 1, 0);
  if (!keep) return report("prune", keep.error(), kExitInvalidValue, err);
  auto keep_every = integer_option(*parsed, "keep-every", 1, 0);
  if (!keep_every) return report("prune", keep_every.error(), kExitInvalidValue, err);
  const bool is_dry = parsed->has("dry-run");
  auto target = find_target(parsed->paths[0]);
  if (!target) return report("prune", target.error(), kExitDataInvalid, err);
  if (target->is_one) {
    return report("prune",
                  make_error(Errc::kInvalidArgument,
                             "{} is a checkpoint; expected a folder of checkpoints", target->path),
                  kExitInvalidValue, err);
  }
  DirectoryLock lock;
  if (!is_dry) {
    auto taken =
        DirectoryLock::acquire(target->directory.path(), fmt::format("prune-{}", ::getpid()));
    if (!taken) return report("prune", taken.error(), kExitCheckpointUnwritable, err);
    lock = std::move(*taken);
    // The previous holder of the lock may have removed checkpoints or added newer ones.
    target = find_target(parsed->paths[0]);
    if (!target) return report("prune", target.error(), kExitDataInvalid, err);
  }
  const std::optional<Entry> newest = verify_newest(*target, *keep, err);
  if (!newest) {
    return report(
        "prune",
        make_error(Errc::kNotFound, "there is no valid checkpoint at {}, so nothing is removed",
                   target->path),
        kExitDataInvalid, err);
  }
  const Retention retention{static_cast<int>(std::min<std::int64_t>(*keep, 1 << 30)), *keep_every};
  return prune(*target, retention, *newest, is_dry, out, err);
}

}  // namespace ddp::checkpoint
