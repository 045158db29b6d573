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

// Everybody looks in its own folder for one that rank 0 makes, and writes into that: this fails
// where the ranks do not share the folder. A save of an earlier round may end meanwhile.
Result<void> Checkpointer::Impl::prove_writable() {
  const bool is_root = group->rank() == 0;
  const std::string word = broadcast_text(*group, unique_word(), 0, kTag);
  const std::string probe = directory.probe_path(word);
  Result<void> begun;
  if (is_root) {
    if (auto made = directory.begin_probe(word); !made) begun = made.error();
  }
  if (auto agreed = agree(*group, begun, kTag); !agreed) return agreed;
  Result<void> written = write_probe(probe);
  Result<void> agreed;
  try {
    agreed = agree(*group, written, kTag);
  } catch (...) {
    if (is_root) (void)directory.discard(probe);
    throw;
  }
  if (is_root) {
    if (auto removed = directory.discard(probe); !removed) {
      warnings.push_back(removed.error().message);
    }
  }
  return agreed;
}

Result<void> Checkpointer::Impl::write_probe(const std::string& probe) {
  const Result<void> written = checkpoint::write_durably(
      files, checkpoint::join_path(probe, fmt::format("rank-{:05}", group->rank())), "probe\n");
  if (written) return {};
  if (const auto seen = files.list(probe); !seen && seen.error().code == Errc::kNotFound) {
    return make_error(
        Errc::kIo,
        "the checkpoint folder {} is not the same one as rank 0's: all ranks must name one "
        "folder that their nodes share",
        options.directory);
  }
  return make_error(Errc::kIo, "the checkpoint folder {} must be writable by all ranks: {}",
                    options.directory, written.error().message);
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
