#include "worker/ddp/state/checkpoint_collect.h"

#include <exception>
#include <memory>
#include <set>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/checkpoint/json_values.h"
#include "worker/checkpoint/share_plan.h"
#include "worker/ddp/state/checkpoint_hooks.h"
#include "worker/ddp/state/generator_state.h"
#include "worker/ddp/tensors/host_copies.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using checkpoint::SnapshotTensor;
using nlohmann::json;

// Builds a Collected, tensor by tensor.
class Collector {
 public:
  Collector(const RegisteredState& state, const CollectOptions& options)
      : state_(state), options_(options) {}

  Result<Collected> collect() {
    collected_.registered = state_.registration();
    if (auto tensors = add_tensors(); !tensors) return tensors.error();
    if (auto hooks = add_hooks(); !hooks) return hooks.error();
    if (auto values = add_values(); !values) return values.error();
    deal();
    checkpoint::SnapshotPlan& plan = collected_.plan;
    plan.rank = options_.rank;
    plan.world_size = options_.world_size;
    plan.files.push_back(
        {checkpoint::shard_file_name(options_.rank), checkpoint::kReplicated, std::move(shard_)});
    plan.files.push_back(
        {checkpoint::rank_file_name(options_.rank), options_.rank, std::move(own_)});
    plan.rank_state = std::move(rank_state_);
    if (is_root()) plan.state = std::move(root_state_);
    return std::move(collected_);
  }

 private:
  bool is_root() const { return options_.rank == 0; }

  Result<SnapshotTensor> take(const StateTensor& state) {
    const auto type = stored_type(state.tensor.scalar_type());
    if (!type || state.tensor.layout() != at::kStrided) {
      return make_error(
          Errc::kInvalidArgument,
          "tensor \"{}\" is {}, which a checkpoint cannot hold; convert it or keep it "
          "out of the module's buffers",
          state.name, describe(state.tensor));
    }
    SnapshotTensor taken;
    taken.name = state.name;
    taken.type = *type;
    taken.shape = state.tensor.sizes().vec();
    // A tensor under several names is one.
    const auto [seen, fresh] =
        seen_.emplace(state.tensor.unsafeGetTensorImpl(), collected_.sources.size());
    taken.storage = seen->second + 1;
    taken.source = seen->second;
    if (fresh) collected_.sources.push_back(state.tensor);
    return taken;
  }

  // pinned: rank 0 writes it whatever the others have.
  Result<void> add_replicated(const std::vector<StateTensor>& tensors, bool pinned) {
    for (const StateTensor& tensor : tensors) {
      auto taken = take(tensor);
      if (!taken) return taken.error();
      items_.push_back({taken->name, taken->bytes(), taken->storage, pinned || !options_.share});
      parts_.push_back(tensor.parts);
      replicated_.push_back(std::move(*taken));
    }
    return {};
  }

  Result<void> add_own(const std::vector<StateTensor>& tensors) {
    for (const StateTensor& tensor : tensors) {
      auto taken = take(tensor);
      if (!taken) return taken.error();
      own_.push_back(std::move(*taken));
    }
    return {};
  }

  Result<void> add_tensors() {
    for (const std::string& name : state_.rngs) {
      for (const DefaultGenerator& item : generators_of(state_, name)) {
        auto added = add_own({{"rng/" + item.name, generator_state(item.generator)}});
        if (!added) return added;
      }
    }
    if (!is_root() && !options_.share) return {};
    for (const auto& item : state_.modules) {
      if (auto added = add_module(fmt::format("{}{}/", kModulePrefix, item.name), item.state());
          !added)
        return added;
    }
    json optimizers = json::object();
    for (const auto& item : state_.optimizers) {
      OptimizerSnapshot snapshot = item.state->snapshot("optimizer/" + item.name + "/");
      optimizers[item.name] = std::move(snapshot.description);
      if (auto added = add_replicated(snapshot.tensors, false); !added) return added;
    }
    if (is_root()) root_state_["optimizers"] = std::move(optimizers);
    return {};
  }

  // Buffers are rank 0's: those of batch norm differ from rank to rank.
  Result<void> add_module(const std::string& prefix, const ModuleState& module) {
    for (const auto* list : {&module.parameters, &module.buffers}) {
      for (const NamedTensor& item : *list) {
        std::vector<StateTensor> named = {{prefix + item.name, item.tensor, item.parts}};
        for (const std::string& name : item.shared_as) {
          named.push_back({prefix + name, item.tensor, item.parts});
          if (is_root()) root_state_["shared"][prefix + name] = named.front().name;
        }
        if (auto added = add_replicated(named, list == &module.buffers); !added) return added;
      }
    }
    return {};
  }

  Result<void> add_hooks() {
    for (const auto& item : state_.hooks) {
      auto snapshot = snapshot_hook(item.name, *item.hook);
      if (!snapshot) return snapshot.error();
      if (auto added = add_own(snapshot->per_rank); !added) return added;
      if (!is_root()) continue;
      for (const StateTensor& tensor : snapshot->replicated) {
        auto taken = take(tensor);
        if (!taken) return taken.error();
        shard_.push_back(std::move(*taken));
      }
      root_state_["comm_hooks"][item.name] = std::move(snapshot->description);
    }
    return {};
  }

  Result<void> add_values() {
    for (const auto& value : state_.values) {
      if (!value.per_rank && !is_root()) continue;
      json saved;
      try {
        saved = value.save();
      } catch (const std::exception& error) {
        return make_error(Errc::kInvalidArgument, "saving the value \"{}\" failed: {}", value.name,
                          error.what());
      }
      if (auto storable = checkpoint::encode_values(saved); !storable) {
        return make_error(Errc::kInvalidArgument, "the value \"{}\" cannot be stored: {}",
                          value.name, storable.error().message);
      }
      (value.per_rank ? rank_state_ : root_state_)["values"][value.name] = std::move(saved);
    }
    return {};
  }

  // Leaves in shard_ what is this rank's to write.
  void deal() {
    const std::vector<Rank> owners = checkpoint::deal_shares(items_, options_.world_size);
    for (std::size_t i = 0; i < replicated_.size(); ++i) {
      SnapshotTensor& tensor = replicated_[i];
      if (options_.share) {
        collected_.shared +=
            fmt::format("{} {} [{}]\n", tensor.name, checkpoint::tensor_type_name(tensor.type),
                        fmt::join(tensor.shape, ","));
      }
      const auto& known = collected_.wanted_sources;
      if (parts_[i] && (known.empty() || known.back() != tensor.source)) {
        collected_.wanted.push_back({*parts_[i], owners[i]});
        collected_.wanted_sources.push_back(tensor.source);
      }
      if (owners[i] == options_.rank) shard_.push_back(std::move(tensor));
    }
  }

  const RegisteredState& state_;
  const CollectOptions options_;
  Collected collected_;
  std::unordered_map<const at::TensorImpl*, std::size_t> seen_;
  std::vector<SnapshotTensor> replicated_;                   // The same on all ranks,
  std::vector<checkpoint::ShareItem> items_;                 // and what there is to deal of each.
  std::vector<std::shared_ptr<const ShardedTensor>> parts_;  // Null: the rank has it whole.
  std::vector<SnapshotTensor> shard_;
  std::vector<SnapshotTensor> own_;
  json root_state_ = {{"values", json::object()}, {"optimizers", json::object()}};
  json rank_state_ = {{"values", json::object()}};
};

}  // namespace

// An exception (no memory, a parameter that has left the module) must not keep this rank from the
// collectives in which the others wait.
Result<Collected> collect(const RegisteredState& state, const CollectOptions& options) {
  try {
    return Collector(state, options).collect();
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "collecting the state failed: {}", error.what());
  }
}

void copy_into(std::span<std::byte> memory, const checkpoint::SnapshotLayout& layout,
               const std::vector<at::Tensor>& sources) {
  HostCopies copies;
  std::set<std::uint64_t> done;  // One tensor under several names has one place.
  for (const checkpoint::SnapshotFile& file : layout.plan.files) {
    for (const SnapshotTensor& place : file.tensors) {
      const at::Tensor& tensor = sources[place.source];
      if (tensor.numel() == 0 || !done.insert(place.offset).second) continue;
      copies.start(memory.data() + place.offset, tensor);
    }
  }
  copies.wait();
}

checkpoint::Snapshot in_place(const checkpoint::SnapshotLayout& layout,
                              const std::vector<at::Tensor>& sources,
                              std::vector<at::Tensor>& keep) {
  const at::NoGradGuard no_grad;
  checkpoint::Snapshot snapshot;
  snapshot.plan = layout.plan;
  for (const checkpoint::SnapshotFile& file : layout.plan.files) {
    auto& bytes = snapshot.bytes.emplace_back();
    for (const SnapshotTensor& place : file.tensors) {
      // Neither copies a tensor that is as it should be already.
      keep.push_back(sources[place.source].detach().cpu().contiguous());
      bytes.emplace_back(static_cast<const std::byte*>(keep.back().data_ptr()),
                         keep.back().nbytes());
    }
  }
  return snapshot;
}

}  // namespace ddp
