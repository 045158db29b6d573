#include "worker/ddp/state/staged_state.h"

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/state/checkpoint_hooks.h"
#include "worker/ddp/state/generator_state.h"

namespace ddp {
namespace {

using nlohmann::json;

// That of a device may be missing: the training was on another kind of device, or is from an
// earlier release.
Result<void> stage_generator(const DefaultGenerator& item, Rank rank, TensorSource& source,
                             StagedState& staged) {
  if (rank >= source.manifest().world_size) return {};
  const checkpoint::TensorRecord* record = source.find("rng/" + item.name, rank);
  if (record == nullptr && item.is_of_device) return {};
  if (record == nullptr) {
    return make_error(Errc::kMismatch, "the checkpoint has no state of the generator \"{}\"",
                      item.name);
  }
  auto read = source.read(*record);
  if (!read) return read.error();
  const at::Generator& generator = item.generator;
  const auto set = [generator](const at::Tensor& to) { set_generator_state(generator, to); };
  staged.risky.push_back({[set, saved = *read] { set(saved); },
                          [set, former = generator_state(generator)] { set(former); },
                          fmt::format("generator \"{}\"", item.name)});
  return {};
}

// What the rank is to have of a number whose sum over the ranks counts: its own, and rank 0 also
// what those had that are beyond the world of `world_size`.
std::optional<json> share_of_sum(const std::vector<json>& ranks, const std::string& name, Rank own,
                                 int world_size) {
  json share = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool is_beyond = own == 0 && rank >= static_cast<std::size_t>(world_size);
    if (rank != static_cast<std::size_t>(own) && !is_beyond) continue;
    const json values = ranks[rank].value("values", json::object());
    const auto found = values.find(name);
    if (found == values.end() || !found->is_number()) return {};
    if (found->is_number_float() || share.is_number_float()) {
      share = share.get<double>() + found->get<double>();
    } else {
      share = share.get<std::int64_t>() + found->get<std::int64_t>();
    }
  }
  return share;
}

Result<void> stage_value(const RegisteredState::Value& value, Rank own, int world_size,
                         const checkpoint::Manifest& manifest, StagedState& staged) {
  const auto rank = static_cast<std::size_t>(own);
  static const json kNone = json::object();
  std::optional<json> found;
  if (value.is_sum) {
    found = share_of_sum(manifest.rank_state, value.name, own, world_size);
  } else {
    if (value.per_rank && rank >= manifest.rank_state.size()) return {};
    const json& saved = value.per_rank ? manifest.rank_state[rank] : manifest.state;
    const json values = saved.value("values", kNone);
    if (values.contains(value.name)) found = values[value.name];
  }
  if (!found) {
    return make_error(Errc::kMismatch, "the checkpoint has no value \"{}\"", value.name);
  }
  std::optional<json> former;  // Nothing: it cannot be saved at this moment, so not be put back.
  try {
    former = value.save();
  } catch (const std::exception&) {
    // For instance, because a step was interrupted in the middle.
  }
  const auto undo = [&value, former] {
    if (former) value.load(*former);
  };
  staged.risky.push_back({[&value, saved = *found] { value.load(saved); }, undo,
                          fmt::format("value \"{}\"", value.name)});
  return {};
}

Result<void> stage_hook(const RegisteredState::Hook& item, Rank rank, int world_size,
                        TensorSource& source, StagedState& staged) {
  auto saved = read_hook_state(item.name, *item.hook, rank, world_size, source);
  if (!saved) return saved.error();
  staged.risky.push_back({[&item, restored = std::move(*saved)] { item.hook->restore(restored); },
                          [&item, former = item.hook->state()] { item.hook->restore(former); },
                          fmt::format("communication hook \"{}\"", item.name)});
  return {};
}

Result<void> stage_optimizer(const RegisteredState::Optimizer& item, TensorSource& source,
                             StagedState& staged) {
  const json descriptions = source.manifest().state.value("optimizers", json::object());
  const auto found = descriptions.find(item.name);
  if (found == descriptions.end()) {
    return make_error(Errc::kMismatch, "the checkpoint has no optimizer \"{}\"", item.name);
  }
  auto commit = item.state->stage("optimizer/" + item.name + "/", *found, source);
  if (!commit) return commit.error();
  staged.commits.push_back(std::move(*commit));
  return {};
}

// Whether to go on after an item; if not, error() says why.
class Tolerance {
 public:
  Tolerance(const LoadOptions& options, StagedState& staged)
      : is_strict_(options.strict), staged_(staged) {}

  bool accepts(const Result<void>& item) {
    if (item) return true;
    if (is_strict_ || item.error().code != Errc::kMismatch) {
      error_ = item.error();
      return false;
    }
    staged_.notes.push_back(item.error().message + "; it stays as it is");
    return true;
  }
  const Error& error() const { return error_; }

 private:
  bool is_strict_;
  StagedState& staged_;
  Error error_;
};

Result<StagedState> stage_or_throw(const RegisteredState& state, Rank rank, int world_size,
                                   TensorSource& source, const LoadOptions& options) {
  StagedState staged;
  NameChoice choice(options.names);
  for (const auto& item : state.modules) {
    auto commit = stage_module(fmt::format("{}{}/", kModulePrefix, item.name), item.state(), source,
                               options.strict, choice, staged.notes);
    if (!commit) return commit.error();
    staged.commits.push_back(std::move(*commit));
  }
  if (const std::string idle = choice.idle(); !idle.empty()) {
    std::string text = fmt::format("\"{}\" covers no tensor of the model or the checkpoint", idle);
    if (options.strict) return Error{Errc::kMismatch, std::move(text)};
    staged.notes.push_back(std::move(text));
  }
  if (!options.names.empty()) return staged;
  Tolerance tolerance(options, staged);
  for (const auto& item : state.optimizers) {
    if (!tolerance.accepts(stage_optimizer(item, source, staged))) return tolerance.error();
  }
  for (const std::string& name : state.rngs) {
    for (const DefaultGenerator& item : generators_of(state, name)) {
      if (!tolerance.accepts(stage_generator(item, rank, source, staged))) return tolerance.error();
    }
  }
  for (const auto& item : state.hooks) {
    if (!tolerance.accepts(stage_hook(item, rank, world_size, source, staged))) {
      return tolerance.error();
    }
  }
  for (const auto& value : state.values) {
    if (!tolerance.accepts(stage_value(value, rank, world_size, source.manifest(), staged))) {
      return tolerance.error();
    }
  }
  return staged;
}

}  // namespace

// An exception (no memory) must not keep this rank from the collectives in which the others wait.
Result<StagedState> stage_state(const RegisteredState& state, Rank rank, int world_size,
                                TensorSource& source, const LoadOptions& options) {
  try {
    return stage_or_throw(state, rank, world_size, source, options);
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "reading the state failed: {}", error.what());
  }
}

Result<void> StagedState::make_risky() const {
  made_ = 0;
  for (const RiskyChange& change : risky) {
    ++made_;  // A change that failed halfway is undone too.
    try {
      change.make();
    } catch (const std::exception& error) {
      return make_error(Errc::kInvalidArgument, "loading the {} failed: {}", change.what,
                        error.what());
    }
  }
  return {};
}

void StagedState::undo() const {
  while (made_ > 0) {
    try {
      risky[--made_].undo();
    } catch (const std::exception&) {
      // The first failure is the one to report; what cannot be undone stays as its load left it.
    }
  }
}

void StagedState::commit() const {
  for (const Commit& change : commits) change();
}

}  // namespace ddp
