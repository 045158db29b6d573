#include "worker/checkpoint/snapshot_publish.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/ranges.h>

namespace ddp::checkpoint {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): durations.

constexpr std::chrono::nanoseconds kFirstPoll = 1ms;
constexpr std::chrono::nanoseconds kLongestPoll = 50ms;
constexpr int kLooksPerTimeout = 8;  // How often to check sizes while the names stay the same.
constexpr std::size_t kRanksNamed = 16;

// Waits until all parts exist, or until nothing has changed for too long.
class PartsWait {
 public:
  PartsWait(SaveFolder& folder, FileSystem& files, int world_size, SaveTime& time,
            std::chrono::milliseconds timeout)
      : folder_(folder), files_(files), world_size_(world_size), time_(time), timeout_(timeout) {}

  Result<void> run() {
    changed_ = looked_ = time_.now();
    for (auto poll = kFirstPoll;; poll = std::min(2 * poll, kLongestPoll)) {
      auto names = folder_.names();
      if (!names) return names.error();
      if (auto complete = look_at(*names); !complete || *complete) {
        return complete ? Result<void>() : complete.error();
      }
      if (time_.now() - changed_ >= timeout_) return timed_out();
      if (auto waited = time_.wait(poll); !waited) return waited;
    }
  }

 private:
  // Returns whether all parts exist.
  Result<bool> look_at(const std::vector<std::string>& names) {
    std::set<std::string> present(names.begin(), names.end());
    for (const std::string& name : names) {
      if (const auto rank = SaveFolder::failed_rank(name)) {
        return make_error(Errc::kAborted, "rank {} could not write its share: {}", *rank,
                          folder_.failure_text(*rank));
      }
    }
    missing_.clear();
    for (Rank rank = 0; rank < world_size_; ++rank) {
      if (!present.contains(SaveFolder::part_name(rank))) missing_.push_back(rank);
    }
    if (present != names_ || sizes_changed(present)) changed_ = time_.now();
    names_ = std::move(present);
    return missing_.empty();
  }

  // A large file grows for a long time without new names appearing.
  bool sizes_changed(const std::set<std::string>& names) {
    if (time_.now() - looked_ < timeout_ / kLooksPerTimeout) return false;
    looked_ = time_.now();
    std::map<std::string, std::uint64_t> sizes;
    for (const std::string& name : names) {
      if (auto file = files_.open_file(join_path(folder_.path(), name))) {
        sizes[name] = (*file)->size();
      }
    }
    const bool changed = sizes != sizes_;
    sizes_ = std::move(sizes);
    return changed;
  }

  Error timed_out() const {
    const auto named = std::min(missing_.size(), kRanksNamed);
    return make_error(
        Errc::kTimeout,
        "nothing came from {} of {} ranks for {} ms (rank {}{}): their writers have ended or do "
        "not see {}",
        missing_.size(), world_size_, timeout_.count(),
        fmt::join(missing_.begin(), missing_.begin() + static_cast<long>(named), ", "),
        named < missing_.size() ? ", ..." : "", folder_.path());
  }

  SaveFolder& folder_;
  FileSystem& files_;
  int world_size_;
  SaveTime& time_;
  std::chrono::milliseconds timeout_;
  TimePoint changed_;
  TimePoint looked_;
  std::set<std::string> names_;
  std::map<std::string, std::uint64_t> sizes_;
  std::vector<Rank> missing_;
};

Result<Manifest> merge_parts(SaveFolder& folder, const SnapshotPlan& plan) {
  Manifest manifest = plan.common_manifest();
  manifest.state = plan.state;
  for (Rank rank = 0; rank < plan.world_size; ++rank) {
    auto part = folder.read_part(rank);
    if (!part) return part.error();
    manifest.rank_state.push_back(std::move(part->rank_state[static_cast<std::size_t>(rank)]));
    std::move(part->files.begin(), part->files.end(), std::back_inserter(manifest.files));
    std::move(part->tensors.begin(), part->tensors.end(), std::back_inserter(manifest.tensors));
  }
  return manifest;
}

// Writes the manifest durably. If a killed publisher left an unfinished one, makes it again from
// the parts, which still exist.
Result<void> add_manifest(SaveFolder& folder, const SnapshotPlan& plan) {
  auto merged = merge_parts(folder, plan);
  if (!merged) return merged.error();
  auto there = folder.has_manifest();
  if (!there) return there.error();
  if (*there) {
    if (auto removed = folder.remove(kManifestName); !removed) return removed;
  }
  return folder.directory().write_manifest(folder.path(), *merged);
}

// From here on only the manifest counts.
void remove_parts(SaveFolder& folder, std::vector<std::string>& warnings) {
  auto names = folder.names();
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with("part-") && !name.starts_with("failed-")) continue;
    if (auto removed = folder.remove(name); !removed) warnings.push_back(removed.error().message);
  }
}

}  // namespace

Result<Entry> publish_save(FileSystem& files, SaveFolder& folder, const SnapshotPlan& plan,
                           SaveTime& time, std::chrono::milliseconds part_timeout,
                           std::vector<std::string>& warnings) {
  if (!folder.read_manifest()) {
    PartsWait parts(folder, files, plan.world_size, time, part_timeout);
    if (auto complete = parts.run(); !complete) return complete.error();
    if (auto added = add_manifest(folder, plan); !added) return added.error();
  }
  remove_parts(folder, warnings);
  return folder.directory().make_visible(folder.path(), plan.step);
}

std::vector<std::string> tidy_up(Directory& directory, const Entry& published,
                                 const Retention& retention, bool leaves_retired) {
  std::vector<std::string> warnings;
  const auto add = [&warnings](std::vector<std::string> lines) {
    std::move(lines.begin(), lines.end(), std::back_inserter(warnings));
  };
  if (auto linked = directory.update_latest(published); !linked) {
    warnings.push_back(linked.error().message);
  }
  // Always remove what earlier saves have left now, so that a failure to do so is reported.
  if (leaves_retired) add(directory.remove_retired());
  add(directory.retire(retention, published));
  if (!leaves_retired) add(directory.remove_retired());
  add(directory.remove_unfinished(published.step));
  return warnings;
}

}  // namespace ddp::checkpoint
