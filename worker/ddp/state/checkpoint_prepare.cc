#include <algorithm>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "worker/ddp/state/checkpointer_impl.h"
#include "worker/ddp/tensors/text_exchange.h"
#include "worker/runtime/worker_environment.h"

// Checkpointer::prepare: the folder, its lock, and the proof that all ranks can write there.
namespace ddp {
namespace {

constexpr const char* kTag = "checkpoint folder";

// The job's name for the lock: a holder with the same name may be waited for. (Without a launcher
// every start is a job of its own.)
std::string job_name() {
  static const std::string without = unique_word();
  return process_variable("TORCHELASTIC_RUN_ID").value_or(without);
}

bool root_says(ProcessGroup& group, bool yes) {
  return broadcast_text(group, yes ? "y" : "n", 0, kTag) == "y";
}

}  // namespace

// Rank 0's process has the folder's lock afterwards. It tries for short times, so that the other
// ranks wait in collectives that end.
Result<void> Checkpointer::Impl::take_lock() {
  // Of the real disk only.
  if (&files != &checkpoint::posix_file_system()) return {};
  const bool is_root = group->rank() == 0;
  if (!is_root) writer->impl().unlock();
  constexpr std::chrono::milliseconds kStrangersWait = std::chrono::seconds(30);
  const TimePoint strangers_deadline = Clock::now() + std::min(options.lock_wait, kStrangersWait);
  const std::string job = job_name();
  // "none" is the name of every job without one, so its holder may be a stranger.
  const TimePoint deadline = job == "none" ? strangers_deadline : Clock::now() + options.lock_wait;
  for (;;) {
    Result<void> taken;
    if (is_root) {
      constexpr std::chrono::milliseconds kSlice{100};
      auto locked = writer->impl().lock(options.directory, job, kSlice);
      if (!locked) {
        taken = locked.error();
      } else if (!locked->empty()) {
        warnings.push_back(*locked);
      }
    }
    bool again = false;
    if (!taken && taken.error().code == Errc::kTimeout) again = Clock::now() < deadline;
    // Between two rounds nobody may hold the lock, so another program (`import`) may have taken it.
    if (!taken && taken.error().code == Errc::kExists && group->round() > 0)
      again = Clock::now() < strangers_deadline;
    if (!root_says(*group, again)) return agree(*group, taken, kTag);
  }
}

// Everybody writes into a folder that rank 0 makes: this fails where the ranks do not share the
// directory. A save of an earlier round may end meanwhile.
Result<void> Checkpointer::Impl::prove_writable() {
  std::string probe;
  Result<void> begun;
  if (group->rank() == 0) {
    auto path = directory.begin_probe(unique_word());
    if (path) {
      probe = *path;
    } else {
      begun = path.error();
    }
  }
  if (auto agreed = agree(*group, begun, kTag); !agreed) return agreed;
  const std::string mine = probe;
  probe = broadcast_text(*group, probe, 0, kTag);
  Result<void> written = checkpoint::write_durably(
      files, checkpoint::join_path(probe, fmt::format("rank-{:05}", group->rank())), "probe\n");
  if (!written) {
    written = make_error(Errc::kIo, "the checkpoint folder {} must be writable by all ranks: {}",
                         options.directory, written.error().message);
  }
  Result<void> agreed;
  try {
    agreed = agree(*group, written, kTag);
  } catch (...) {
    if (group->rank() == 0) (void)directory.discard(probe);
    throw;
  }
  if (group->rank() == 0) {
    if (auto removed = directory.discard(mine); !removed) {
      warnings.push_back(removed.error().message);
    }
  }
  return agreed;
}

Result<void> Checkpointer::Impl::prepare() {
  warnings.clear();
  const bool is_root = group->rank() == 0;
  Result<void> made;
  if (is_root) made = checkpoint::make_directories(files, options.directory);
  if (auto agreed = agree(*group, made, kTag); !agreed) return agreed;
  // What this process has begun in an earlier round is no leftover.
  const bool was_ours =
      is_root && (writer->impl().holds(options.directory) || writer->impl().busy());
  if (auto locked = take_lock(); !locked) return locked;
  if (is_root) {
    using Leftovers = checkpoint::Directory::Leftovers;
    made = directory.prepare(&warnings, was_ours ? Leftovers::kKeep : Leftovers::kRemove);
  }
  if (auto agreed = agree(*group, made, kTag); !agreed) return agreed;
  return prove_writable();
}

}  // namespace ddp
