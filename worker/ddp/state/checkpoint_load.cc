#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "common/base/json_text.h"
#include "worker/checkpoint/verify_plan.h"
#include "worker/ddp/state/checkpointer_impl.h"
#include "worker/ddp/state/staged_state.h"
#include "worker/ddp/tensors/text_exchange.h"
#include "worker/ddp/tensors/value_moves.h"

// Checkpointer::load_latest: rank 0 finds a checkpoint, all ranks verify it, each its part of the
// files, then each reads what it needs, and only when all have done so is anything changed.
namespace ddp {
namespace {

using nlohmann::json;

constexpr const char* kLoadTag = "checkpoint load";

// All ranks make their changes, or none does.
Result<void> make_changes(ProcessGroup& group, const StagedState& staged) {
  const Result<void> result = staged.make_risky();
  Result<void> agreed;
  try {
    agreed = agree(group, result, kLoadTag);
  } catch (...) {
    staged.undo();
    throw;
  }
  if (!agreed) {
    staged.undo();
    return agreed;
  }
  staged.commit();
  return {};
}

bool has_state_per_rank(const checkpoint::Manifest& manifest) {
  return std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                     [](const auto& tensor) { return tensor.rank != checkpoint::kReplicated; }) ||
         std::any_of(manifest.rank_state.begin(), manifest.rank_state.end(), [](const json& rank) {
           return !rank.value("values", json::object()).empty();
         });
}

bool has_hook_state_per_rank(const checkpoint::Manifest& manifest) {
  const json hooks = manifest.state.value("comm_hooks", json::object());
  return std::any_of(hooks.begin(), hooks.end(), [](const json& hook) {
    return !hook.value("per_rank", json::array()).empty();
  });
}

std::vector<std::string> notes_on(const Checkpointer::Impl& impl,
                                  const checkpoint::Manifest& manifest) {
  std::vector<std::string> notes;
  const int before = manifest.world_size;
  const int now = impl.group->size();
  const bool per_rank = has_state_per_rank(manifest);
  if (per_rank && before > now) {
    notes.push_back(
        fmt::format("the checkpoint is of {} ranks, now there are {}: per-rank state from rank {} "
                    "on is dropped",
                    before, now, now));
  } else if (per_rank && before < now) {
    notes.push_back(fmt::format(
        "the checkpoint is of {} ranks, now there are {}: from rank {} on, ranks keep the per-rank "
        "state they have",
        before, now, before));
  }
  if (before != now && !impl.hooks.empty() && has_hook_state_per_rank(manifest)) {
    notes.push_back(
        "every rank's communication hooks get the mean of the per-rank state over the ranks that "
        "saved it");
  }
  std::set<std::string> registered;
  for (const auto& item : impl.modules) registered.insert("module \"" + item.name + "\"");
  for (const auto& item : impl.optimizers) registered.insert("optimizer \"" + item.name + "\"");
  for (const auto& item : impl.values) registered.insert("value \"" + item.name + "\"");
  for (const auto& item : impl.hooks) {
    registered.insert("communication hook \"" + item.name + "\"");
  }
  std::set<std::string> saved;
  for (const auto& tensor : manifest.tensors) {
    if (!tensor.name.starts_with(kModulePrefix)) continue;
    const std::string rest = tensor.name.substr(kModulePrefix.size());
    saved.insert("module \"" + rest.substr(0, rest.find('/')) + "\"");
  }
  for (const auto& [kind, member] : {std::pair("optimizer", "optimizers"),
                                     {"value", "values"},
                                     {"communication hook", "comm_hooks"}}) {
    const json items = manifest.state.value(member, json::object());
    for (const auto& item : items.items()) {
      saved.insert(fmt::format("{} \"{}\"", kind, item.key()));
    }
  }
  for (const std::string& item : saved) {
    if (!registered.contains(item)) {
      notes.push_back(fmt::format("the checkpoint has the {}, which is not registered", item));
    }
  }
  return notes;
}

struct Candidate {
  checkpoint::Entry entry;
  checkpoint::Manifest manifest;
};

// Rank 0's next checkpoint that looks complete, known to all; nothing if there is no more.
Result<std::optional<Candidate>> next_candidate(ProcessGroup& group,
                                                checkpoint::ValidSearch& search) {
  std::string path;
  std::string text;
  Result<void> searched;
  if (group.rank() == 0) {
    auto found = search.next();
    if (!found) {
      searched = found.error();
    } else if (found->has_value()) {
      path = (*found)->entry.path;
      auto serialized = checkpoint::manifest_to_text((*found)->manifest);
      if (serialized) {
        text = std::move(*serialized);
      } else {
        searched = serialized.error();
      }
    }
  }
  if (auto agreed = agree(group, searched, kLoadTag); !agreed) return agreed.error();
  path = broadcast_text(group, path, 0, kLoadTag);
  if (path.empty()) return std::optional<Candidate>();
  text = broadcast_text(group, text, 0, kLoadTag);
  auto manifest = checkpoint::parse_manifest(text);
  if (!manifest) return manifest.error();
  auto entry = checkpoint::parse_entry_name(path.substr(path.rfind('/') + 1));
  DDP_CHECK(entry.has_value(), "{}", path);
  entry->path = path;
  return std::optional<Candidate>(Candidate{std::move(*entry), std::move(*manifest)});
}

std::vector<std::string> share_lines(ProcessGroup& group, const std::vector<std::string>& lines) {
  const std::string text = broadcast_text(group, dump_json(json(lines)), 0, kLoadTag);
  return parse_json(text).get<std::vector<std::string>>();
}

// Tells how far this rank's reading has come.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress(const LoadOptions& options, std::uint64_t total) : options_(options), total_(total) {}

  void add(std::uint64_t bytes) {
    bytes_ += bytes;
    if (!options_.progress) return;
    const Clock::time_point now = Clock::now();
    if (std::chrono::duration<double>(now - told_).count() < options_.progress_every) return;
    told_ = now;
    options_.progress({bytes_, total_, std::chrono::duration<double>(now - begun_).count()});
  }

 private:
  const LoadOptions& options_;
  std::uint64_t total_;
  std::uint64_t bytes_ = 0;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point told_ = begun_;
};

// What this rank reads: the files that it verifies, and at most all replicated tensors of others.
std::uint64_t bytes_to_read(const checkpoint::Manifest& manifest,
                            const std::vector<const checkpoint::FileRecord*>& verified) {
  std::uint64_t bytes = 0;
  std::set<std::string_view> names;
  for (const checkpoint::FileRecord* file : verified) {
    bytes += file->bytes;
    names.insert(file->name);
  }
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) {
    if (tensor.rank != checkpoint::kReplicated || names.contains(tensor.file)) continue;
    bytes += checkpoint::tensor_bytes(tensor.type, tensor.shape).value_or(0);
  }
  return bytes;
}

// All ranks together: every byte of the checkpoint against its checksums.
Result<void> verify_together(ProcessGroup& group, checkpoint::Reader& reader,
                             const std::vector<const checkpoint::FileRecord*>& files) {
  Result<void> mine;
  for (const checkpoint::FileRecord* file : files) {
    mine = reader.verify_tensors(*file, loading_threads());
    if (!mine) break;
  }
  return agree(group, mine, kLoadTag);
}

}  // namespace

Result<LoadReport> Checkpointer::Impl::load_latest(const LoadOptions& chosen) {
  checkpoint::ValidSearch search(directory);
  for (;;) {
    auto candidate = next_candidate(*group, search);
    if (!candidate) return candidate.error();
    if (!candidate->has_value()) {
      LoadReport report;
      report.skipped = share_lines(*group, search.skipped());
      return report;
    }
    const checkpoint::Manifest& manifest = (*candidate)->manifest;
    FileTensorSource source(files, (*candidate)->entry, manifest);
    const auto mine = checkpoint::files_to_verify(manifest, group->rank(), group->size());
    Progress progress(chosen, bytes_to_read(manifest, mine));
    source.reader().on_progress([&progress](std::uint64_t bytes) { progress.add(bytes); });
    // Before anything is read for good: whether a checkpoint is damaged comes first, whether it
    // is another model's second.
    if (auto good = verify_together(*group, source.reader(), mine); !good) {
      if (group->rank() == 0) search.reject((*candidate)->entry, good.error().message);
      continue;
    }
    Result<StagedState> staged = stage_state(*this, group->rank(), group->size(), source, chosen);
    auto agreed = agree(*group, staged ? Result<void>() : Result<void>(staged.error()), kLoadTag);
    if (!agreed) {
      if (!checkpoint::is_damage(agreed.error())) {
        return make_error(static_cast<Errc>(agreed.error().code.value()), "{}: {}",
                          (*candidate)->entry.path, agreed.error().message);
      }
      if (group->rank() == 0) search.reject((*candidate)->entry, agreed.error().message);
      continue;
    }
    if (auto made = make_changes(*group, *staged); !made) return made.error();
    LoadReport report;
    report.step = manifest.step;
    report.epoch = manifest.epoch;
    report.world_size = manifest.world_size;
    report.path = (*candidate)->entry.path;
    report.skipped = share_lines(*group, search.skipped());
    if (chosen.names.empty()) report.notes = notes_on(*this, manifest);
    for (std::string& note : share_lines(*group, staged->notes)) {
      report.notes.push_back(std::move(note));
    }
    return report;
  }
}

}  // namespace ddp
