#include <exception>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "worker/ddp/checkpoint_hooks.h"
#include "worker/ddp/checkpointer_impl.h"
#include "worker/ddp/exchange.h"
#include "worker/ddp/generator_state.h"

// Checkpointer::load_latest: rank 0 finds and verifies, everybody reads into new memory, and only
// when all have done so is anything changed.
namespace ddp {
namespace {

using nlohmann::json;

constexpr const char* kLoadTag = "checkpoint load";

// A change that may fail, and its undoing.
struct RiskyChange {
  std::function<void()> make;
  std::function<void()> undo;
  std::string what;
};

struct Staged {
  std::vector<RiskyChange> risky;
  std::vector<Commit> commits;
};

Result<void> stage_generators(const Checkpointer::Impl& impl, TensorSource& source,
                              Staged& staged) {
  const Rank rank = impl.group->rank();
  if (rank >= source.manifest().world_size) return {};
  for (const std::string& name : impl.rngs) {
    const checkpoint::TensorRecord* record = source.find("rng/" + name, rank);
    if (record == nullptr) {
      return make_error(Errc::kMismatch, "the checkpoint has no state of the generator \"{}\"",
                        name);
    }
    auto state = source.read(*record);
    if (!state) return state.error();
    staged.risky.push_back({[saved = *state] { set_generator_state(saved); },
                            [former = generator_state()] { set_generator_state(former); },
                            fmt::format("generator \"{}\"", name)});
  }
  return {};
}

Result<void> stage_values(const Checkpointer::Impl& impl, const checkpoint::Manifest& manifest,
                          Staged& staged) {
  const auto rank = static_cast<std::size_t>(impl.group->rank());
  static const json kNone = json::object();
  for (const auto& value : impl.values) {
    if (value.per_rank && rank >= manifest.rank_state.size()) continue;
    const json& state = value.per_rank ? manifest.rank_state[rank] : manifest.state;
    const json values = state.value("values", kNone);
    const auto found = values.find(value.name);
    if (found == values.end()) {
      return make_error(Errc::kMismatch, "the checkpoint has no value \"{}\"", value.name);
    }
    std::string what = fmt::format("value \"{}\"", value.name);
    json former;
    try {
      former = value.save();
    } catch (const std::exception& error) {
      return make_error(Errc::kInvalidArgument, "{} cannot be saved before loading: {}", what,
                        error.what());
    }
    staged.risky.push_back({[&value, saved = *found] { value.load(saved); },
                            [&value, former] { value.load(former); }, std::move(what)});
  }
  return {};
}

Result<void> stage_hooks(const Checkpointer::Impl& impl, TensorSource& source, Staged& staged) {
  for (const auto& item : impl.hooks) {
    auto state =
        read_hook_state(item.name, *item.hook, impl.group->rank(), impl.group->size(), source);
    if (!state) return state.error();
    staged.risky.push_back({[&item, saved = std::move(*state)] { item.hook->restore(saved); },
                            [&item, former = item.hook->state()] { item.hook->restore(former); },
                            fmt::format("communication hook \"{}\"", item.name)});
  }
  return {};
}

Result<Staged> stage_or_throw(const Checkpointer::Impl& impl, TensorSource& source) {
  Staged staged;
  const checkpoint::Manifest& manifest = source.manifest();
  for (const auto& item : impl.modules) {
    auto commit = stage_module("module/" + item.name + "/", *item.module, source);
    if (!commit) return commit.error();
    staged.commits.push_back(std::move(*commit));
  }
  const json descriptions = manifest.state.value("optimizers", json::object());
  for (const auto& item : impl.optimizers) {
    const auto found = descriptions.find(item.name);
    if (found == descriptions.end()) {
      return make_error(Errc::kMismatch, "the checkpoint has no optimizer \"{}\"", item.name);
    }
    auto commit = item.state->stage("optimizer/" + item.name + "/", *found, source);
    if (!commit) return commit.error();
    staged.commits.push_back(std::move(*commit));
  }
  if (auto generators = stage_generators(impl, source, staged); !generators) {
    return generators.error();
  }
  if (auto hooks = stage_hooks(impl, source, staged); !hooks) return hooks.error();
  if (auto values = stage_values(impl, manifest, staged); !values) return values.error();
  return staged;
}

// An exception (no memory) must not keep this rank from the collectives in which the others wait.
Result<Staged> stage(const Checkpointer::Impl& impl, TensorSource& source) {
  try {
    return stage_or_throw(impl, source);
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "reading the state failed: {}", error.what());
  }
}

void undo(const Staged& staged, std::size_t made) {
  while (made > 0) {
    try {
      staged.risky[--made].undo();
    } catch (const std::exception&) {
      // The first failure is the one to report; what cannot be undone stays as its load left it.
    }
  }
}

// All ranks make their changes, or none does.
Result<void> make_changes(ProcessGroup& group, const Staged& staged) {
  Result<void> result;
  std::size_t made = 0;
  for (const RiskyChange& change : staged.risky) {
    ++made;  // A change that failed halfway is undone too.
    try {
      change.make();
    } catch (const std::exception& error) {
      result = make_error(Errc::kInvalidArgument, "loading the {} failed: {}", change.what,
                          error.what());
      break;
    }
  }
  Result<void> agreed;
  try {
    agreed = agree(group, result, kLoadTag);
  } catch (...) {
    undo(staged, made);
    throw;
  }
  if (!agreed) {
    undo(staged, made);
    return agreed;
  }
  for (const Commit& commit : staged.commits) commit();
  return {};
}

std::vector<std::string> notes_on(const Checkpointer::Impl& impl,
                                  const checkpoint::Manifest& manifest) {
  std::vector<std::string> notes;
  const int before = manifest.world_size;
  const int now = impl.group->size();
  if (before > now) {
    notes.push_back(
        fmt::format("the checkpoint is of {} ranks, now there are {}: per-rank state from rank {} "
                    "on is dropped",
                    before, now, now));
  } else if (before < now) {
    notes.push_back(fmt::format(
        "the checkpoint is of {} ranks, now there are {}: from rank {} on, ranks keep the per-rank "
        "state they have",
        before, now, before));
  }
  if (before != now && !impl.hooks.empty()) {
    notes.push_back(
        "what communication hooks had per rank is now, on every rank, the mean over the ranks that "
        "there were");
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
    if (!tensor.name.starts_with("module/")) continue;
    const std::string rest = tensor.name.substr(7);
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

bool is_damage(const Error& error) {
  return error.code == Errc::kCorrupt || error.code == Errc::kIo || error.code == Errc::kNotFound;
}

struct Candidate {
  checkpoint::Entry entry;
  checkpoint::Manifest manifest;
};

// Rank 0's next valid checkpoint, known to all; nothing if there is no more.
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
  const std::string text = broadcast_text(
      group, json(lines).dump(-1, ' ', false, json::error_handler_t::replace), 0, kLoadTag);
  return json::parse(text).get<std::vector<std::string>>();
}

}  // namespace

Result<LoadReport> Checkpointer::Impl::load_latest() {
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
    TensorSource source(files, (*candidate)->entry, manifest);
    Result<Staged> staged = stage(*this, source);
    auto agreed = agree(*group, staged ? Result<void>() : Result<void>(staged.error()), kLoadTag);
    if (!agreed) {
      if (!is_damage(agreed.error())) {
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
    report.notes = notes_on(*this, manifest);
    return report;
  }
}

}  // namespace ddp
