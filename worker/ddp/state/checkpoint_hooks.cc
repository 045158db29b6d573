#include "worker/ddp/state/checkpoint_hooks.h"

#include <algorithm>
#include <exception>
#include <map>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/checkpoint/json_values.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using nlohmann::json;

using Tensors = std::map<std::string, at::Tensor>;

std::vector<std::string> keys_of(const Tensors& tensors) {
  std::vector<std::string> keys;
  for (const auto& [key, tensor] : tensors) keys.push_back(key);
  return keys;
}

Result<const json*> description_of(const std::string& name, const CommHook& hook,
                                   const checkpoint::Manifest& manifest) {
  static const json kNone = json::object();
  const auto hooks = manifest.state.find("comm_hooks");
  const json& all = hooks == manifest.state.end() ? kNone : *hooks;
  const auto found = all.find(name);
  if (found == all.end()) {
    return make_error(Errc::kMismatch, "the checkpoint has no communication hook \"{}\"", name);
  }
  const auto has_keys = [&found](const char* member) {
    const auto list = found->find(member);
    return list != found->end() && list->is_array() &&
           std::all_of(list->begin(), list->end(), [](const json& key) { return key.is_string(); });
  };
  if (!found->is_object() || !found->contains("values") || !has_keys("replicated") ||
      !has_keys("per_rank") || !found->contains("hook") || !found->at("hook").is_string()) {
    return make_error(Errc::kCorrupt,
                      "the checkpoint's description of the communication hook \"{}\" is invalid",
                      name);
  }
  const auto kind = found->at("hook").get<std::string>();
  if (kind != hook.name()) {
    return make_error(Errc::kMismatch,
                      "the checkpoint's communication hook \"{}\" is {}, here it is {}", name, kind,
                      hook.name());
  }
  return &*found;
}

Result<at::Tensor> read_one(const std::string& name, const std::string& key, Rank rank,
                            TensorSource& source) {
  const auto* record = source.find(fmt::format("hook/{}/{}", name, key), rank);
  if (record != nullptr) return source.read(*record);
  if (rank == checkpoint::kReplicated) {
    return make_error(Errc::kMismatch, "the checkpoint's communication hook \"{}\" lacks \"{}\"",
                      name, key);
  }
  return make_error(Errc::kMismatch,
                    "the checkpoint's communication hook \"{}\" lacks \"{}\" of rank {}", name, key,
                    rank);
}

// The mean over all ranks that there were, in float64 and rounded once.
Result<at::Tensor> read_mean(const std::string& name, const std::string& key,
                             TensorSource& source) {
  const int ranks = source.manifest().world_size;
  at::Tensor sum;
  at::Tensor first;
  for (Rank rank = 0; rank < ranks; ++rank) {
    auto tensor = read_one(name, key, rank, source);
    if (!tensor) return tensor;
    if (!at::isFloatingType(tensor->scalar_type()) ||
        (first.defined() &&
         (first.sizes() != tensor->sizes() || first.scalar_type() != tensor->scalar_type()))) {
      return make_error(Errc::kMismatch,
                        "\"{}\" of the checkpoint's communication hook \"{}\" is {} on rank {}: "
                        "there is no mean over its ranks, and their number has changed",
                        key, name, describe(*tensor), rank);
    }
    if (!first.defined()) {
      first = *tensor;
      sum = at::zeros(first.sizes(), at::TensorOptions(at::kDouble));
    }
    sum.add_(*tensor);
  }
  return sum.div_(ranks).to(first.scalar_type());
}

}  // namespace

Result<HookSnapshot> snapshot_hook(const std::string& name, const CommHook& hook) {
  CommHookState state;
  try {
    state = hook.state();
  } catch (const CollectiveError&) {
    throw;  // A rank was lost while the hook waited for what it saves.
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "saving the communication hook \"{}\" failed: {}",
                      name, error.what());
  }
  if (auto storable = checkpoint::encode_values(state.values); !storable) {
    return make_error(Errc::kInvalidArgument,
                      "values of the communication hook \"{}\" cannot be stored: {}", name,
                      storable.error().message);
  }
  HookSnapshot snapshot;
  snapshot.description = {{"hook", hook.name()},
                          {"values", std::move(state.values)},
                          {"replicated", keys_of(state.replicated)},
                          {"per_rank", keys_of(state.per_rank)}};
  for (auto& [key, tensor] : state.replicated) {
    snapshot.replicated.push_back({fmt::format("hook/{}/{}", name, key), std::move(tensor)});
  }
  for (auto& [key, tensor] : state.per_rank) {
    snapshot.per_rank.push_back({fmt::format("hook/{}/{}", name, key), std::move(tensor)});
  }
  return snapshot;
}

Result<CommHookState> read_hook_state(const std::string& name, const CommHook& hook, Rank rank,
                                      int world_size, TensorSource& source) {
  auto description = description_of(name, hook, source.manifest());
  if (!description) return description.error();
  const json& saved = **description;
  CommHookState state;
  state.values = saved.at("values");
  for (const auto& key : saved.at("replicated")) {
    auto tensor = read_one(name, key.get<std::string>(), checkpoint::kReplicated, source);
    if (!tensor) return tensor.error();
    state.replicated[key.get<std::string>()] = std::move(*tensor);
  }
  const bool is_same_world = source.manifest().world_size == world_size;
  for (const auto& key : saved.at("per_rank")) {
    auto tensor = is_same_world ? read_one(name, key.get<std::string>(), rank, source)
                                : read_mean(name, key.get<std::string>(), source);
    if (!tensor) return tensor.error();
    state.per_rank[key.get<std::string>()] = std::move(*tensor);
  }
  return state;
}

}  // namespace ddp
