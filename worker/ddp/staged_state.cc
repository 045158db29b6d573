#include "worker/ddp/staged_state.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/checkpoint_hooks.h"
#include "worker/ddp/generator_state.h"

namespace ddp {
namespace {

using nlohmann::json;

Result<void> stage_generators(const RegisteredState& state, Rank rank, TensorSource& source,
                              StagedState& staged) {
  if (rank >= source.manifest().world_size) return {};
  for (const std::string& name : state.rngs) {
    const checkpoint::TensorRecord* record = source.find("rng/" + name, rank);
    if (record == nullptr) {
      return make_error(Errc::kMismatch, "the checkpoint has no state of the generator \"{}\"",
                        name);
    }
    auto read = source.read(*record);
    if (!read) return read.error();
    staged.risky.push_back({[saved = *read] { set_generator_state(saved); },
                            [former = generator_state()] { set_generator_state(former); },
                            fmt::format("generator \"{}\"", name)});
  }
  return {};
}

Result<void> stage_values(const RegisteredState& state, Rank own,
                          const checkpoint::Manifest& manifest, StagedState& staged) {
  const auto rank = static_cast<std::size_t>(own);
  static const json kNone = json::object();
  for (const auto& value : state.values) {
    if (value.per_rank && rank >= manifest.rank_state.size()) continue;
    const json& saved = value.per_rank ? manifest.rank_state[rank] : manifest.state;
    const json values = saved.value("values", kNone);
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

Result<void> stage_hooks(const RegisteredState& state, Rank rank, int world_size,
                         TensorSource& source, StagedState& staged) {
  for (const auto& item : state.hooks) {
    auto saved = read_hook_state(item.name, *item.hook, rank, world_size, source);
    if (!saved) return saved.error();
    staged.risky.push_back({[&item, restored = std::move(*saved)] { item.hook->restore(restored); },
                            [&item, former = item.hook->state()] { item.hook->restore(former); },
                            fmt::format("communication hook \"{}\"", item.name)});
  }
  return {};
}

Result<StagedState> stage_or_throw(const RegisteredState& state, Rank rank, int world_size,
                                   TensorSource& source) {
  StagedState staged;
  const checkpoint::Manifest& manifest = source.manifest();
  for (const auto& item : state.modules) {
    auto commit = stage_module("module/" + item.name + "/", *item.module, source);
    if (!commit) return commit.error();
    staged.commits.push_back(std::move(*commit));
  }
  const json descriptions = manifest.state.value("optimizers", json::object());
  for (const auto& item : state.optimizers) {
    const auto found = descriptions.find(item.name);
    if (found == descriptions.end()) {
      return make_error(Errc::kMismatch, "the checkpoint has no optimizer \"{}\"", item.name);
    }
    auto commit = item.state->stage("optimizer/" + item.name + "/", *found, source);
    if (!commit) return commit.error();
    staged.commits.push_back(std::move(*commit));
  }
  if (auto generators = stage_generators(state, rank, source, staged); !generators) {
    return generators.error();
  }
  if (auto hooks = stage_hooks(state, rank, world_size, source, staged); !hooks)
    return hooks.error();
  if (auto values = stage_values(state, rank, manifest, staged); !values) return values.error();
  return staged;
}

}  // namespace

// An exception (no memory) must not keep this rank from the collectives in which the others wait.
Result<StagedState> stage_state(const RegisteredState& state, Rank rank, int world_size,
                                TensorSource& source) {
  try {
    return stage_or_throw(state, rank, world_size, source);
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
