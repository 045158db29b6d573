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
// More time between two looks is no silence of the others: this process was stopped, or the disk
// held it up, too.
constexpr std::chrono::nanoseconds kLongestPause = 1s;
constexpr std::size_t kRanksNamed = 16;

// Waits until all parts exist, or until nothing has changed for too long.
class PartsWait {
 public:
  PartsWait(SaveFolder& folder, FileSystem& files, const SnapshotPlan& plan, SaveTime& time,
            const WriterOptions& options)
      : folder_(folder), files_(files), plan_(plan), time_(time), options_(options) {}

  Result<void> run() {
    TimePoint before = looked_ = time_.now();
    for (auto poll = kFirstPoll;; poll = std::min(2 * poll, kLongestPoll)) {
      auto names = folder_.names();
      if (!names && names.error().code == Errc::kNotFound) {
        return make_error(Errc::kAborted, "another rank has given up this save: {}",
                          names.error().message);
      }
      if (!names) return names.error();
      const TimePoint now = time_.now();
      silent_ += std::min<std::chrono::nanoseconds>(now - before, kLongestPause);
      before = now;
      if (auto complete = look_at(*names); !complete || *complete) {
        return complete ? Result<void>() : complete.error();
      }
      if (const auto lost = missing_and_lost(); !lost.empty()) {
        return make_error(
            Errc::kAborted,
            "the nodes of {} of {} ranks were lost before their shares were written (rank {})",
            lost.size(), plan_.world_size, some_of(lost));
      }
      if (silent_ >= patience()) return timed_out();
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
    missing_ = folder_.missing_parts(present);
    if (present != names_ || contents_changed(present)) silent_ = 0s;
    names_ = std::move(present);
    return missing_.empty();
  }

  std::vector<Rank> missing_and_lost() const {
    std::vector<Rank> lost;
    if (!options_.lost_ranks) return lost;
    std::ranges::set_intersection(missing_, options_.lost_ranks(), std::back_inserter(lost));
    return lost;
  }

  static std::string some_of(const std::vector<Rank>& ranks) {
    const auto named = std::min(ranks.size(), kRanksNamed);
    return fmt::format("{}{}",
                       fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(named), ", "),
                       named < ranks.size() ? ", ..." : "");
  }

  std::chrono::milliseconds patience() const {
    const bool lasts = options_.round_lasts && options_.round_lasts();
    return lasts ? std::max(plan_.timeout, options_.part_timeout) : options_.part_timeout;
  }

  // A large file grows for a long time without new names appearing, and a writer that stands in a
  // call says so again and again.
  bool contents_changed(const std::set<std::string>& names) {
    if (time_.now() - looked_ < options_.part_timeout / kLooksPerTimeout) return false;
    looked_ = time_.now();
    std::map<std::string, std::uint64_t> sizes;
    for (const std::string& name : names) {
      if (auto file = files_.open_file(join_path(folder_.path(), name))) {
        sizes[name] = (*file)->size();
      }
    }
    std::map<Rank, std::string> lives;
    for (const Rank rank : missing_) {
      if (names.contains(SaveFolder::life_name(rank))) lives[rank] = folder_.life_text(rank);
    }
    const bool changed = sizes != sizes_ || lives != lives_;
    sizes_ = std::move(sizes);
    lives_ = std::move(lives);
    return changed;
  }

  Error timed_out() const {
    std::string last_words;
    for (const auto& [rank, text] : lives_) {
      if (!text.empty()) last_words += fmt::format("; rank {} said last: {}", rank, text);
    }
    return make_error(
        Errc::kTimeout,
        "nothing came from {} of {} ranks for {} ms (rank {}): their writers have ended or do not "
        "see {}{}",
        missing_.size(), plan_.world_size, patience().count(), some_of(missing_), folder_.path(),
        last_words);
  }

  SaveFolder& folder_;
  FileSystem& files_;
  const SnapshotPlan& plan_;
  SaveTime& time_;
  const WriterOptions& options_;
  std::chrono::nanoseconds silent_{0};  // Since the last sign of life of a writer.
  TimePoint looked_;
  std::set<std::string> names_;
  std::map<Rank, std::string> lives_;
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
Result<void> add_manifest(SaveFolder& folder, const SnapshotPlan& plan, const SaveTime& time) {
  auto merged = merge_parts(folder, plan);
  if (!merged) return merged.error();
  merged->seconds = time.seconds();
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
    if (!SaveFolder::is_for_writers(name)) continue;
    if (auto removed = folder.remove(name); !removed) warnings.push_back(removed.error().message);
  }
}

}  // namespace

Result<Entry> publish_save(FileSystem& files, SaveFolder& folder, const SnapshotPlan& plan,
                           SaveTime& time, const WriterOptions& options,
                           std::vector<std::string>& warnings) {
  // The parts go once the manifest is durable. While all of them are there, a publisher may have
  // been killed before that, and the manifest may be in memory only: it is made again.
  if (!folder.read_manifest() || folder.has_all_parts()) {
    PartsWait parts(folder, files, plan, time, options);
    if (auto complete = parts.run(); !complete) return complete.error();
    if (auto added = add_manifest(folder, plan, time); !added) return added.error();
  }
  // A writer that stood still for too long may go on after all, when its save has been reported as
  // failed.
  if (auto alive = time.alive(); !alive) return alive.error();
  remove_parts(folder, warnings);
  if (options.before_visible) options.before_visible();
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
