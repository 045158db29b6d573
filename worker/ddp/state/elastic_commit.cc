#include "worker/ddp/state/elastic_commit.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "common/base/json_text.h"
#include "worker/checkpoint/json_values.h"
#include "worker/ddp/state/checkpoint_hooks.h"
#include "worker/ddp/state/commit_memory.h"
#include "worker/ddp/state/generator_state.h"
#include "worker/ddp/state/staged_state.h"
#include "worker/ddp/tensors/host_copies.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::elastic {
namespace {

using nlohmann::json;

constexpr std::size_t kAlignment = 64;  // Of tensors within a part.

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Everything that is to be copied: the tensors are the state's own.
struct Collected {
  json header = {
      {"values", json::object()}, {"optimizers", json::object()}, {"comm_hooks", json::object()}};
  std::vector<StateTensor> replicated;
  std::vector<std::size_t> buffers;  // Of replicated.
  json part_values = json::object();
  std::vector<StateTensor> per_rank;
};

void append(std::vector<StateTensor>& to, std::vector<StateTensor> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

Result<Collected> collect(const RegisteredState& state) {
  Collected all;
  for (const auto& item : state.modules) {
    const ModuleState module = item.state();
    append(all.replicated, module_tensors(fmt::format("{}{}/", kModulePrefix, item.name), module));
    std::size_t count = 0;  // The last ones.
    for (const NamedTensor& buffer : module.buffers) {
      count += 1 + buffer.shared_as.size();
    }
    for (; count > 0; --count) all.buffers.push_back(all.replicated.size() - count);
  }
  for (const auto& item : state.optimizers) {
    OptimizerSnapshot snapshot = item.state->snapshot("optimizer/" + item.name + "/");
    auto description = checkpoint::encode_values(snapshot.description);
    if (!description) {
      return make_error(Errc::kInvalidArgument, "the optimizer \"{}\" cannot be committed: {}",
                        item.name, description.error().message);
    }
    all.header["optimizers"][item.name] = std::move(*description);
    append(all.replicated, std::move(snapshot.tensors));
  }
  for (const std::string& name : state.rngs) {
    for (const DefaultGenerator& item : generators_of(state, name)) {
      all.per_rank.push_back({"rng/" + item.name, generator_state(item.generator)});
    }
  }
  for (const auto& item : state.hooks) {
    auto snapshot = snapshot_hook(item.name, *item.hook);
    if (!snapshot) return snapshot.error();
    all.header["comm_hooks"][item.name] = std::move(snapshot->description);
    append(all.replicated, std::move(snapshot->replicated));
    append(all.per_rank, std::move(snapshot->per_rank));
  }
  for (const auto& value : state.values) {
    auto saved = checkpoint::encode_values(value.save());
    if (!saved) {
      return make_error(Errc::kInvalidArgument, "the value \"{}\" cannot be committed: {}",
                        value.name, saved.error().message);
    }
    (value.per_rank ? all.part_values : all.header["values"])[value.name] = std::move(*saved);
  }
  return all;
}

Result<json> list_tensors(const std::vector<StateTensor>& tensors) {
  json list = json::array();
  for (const StateTensor& item : tensors) {
    if (item.parts) {
      return make_error(Errc::kInvalidArgument,
                        "tensor \"{}\" is divided among the ranks, and commits keep whole tensors "
                        "only: train without run_elastic, from checkpoint to checkpoint",
                        item.name);
    }
    const auto type = stored_type(item.tensor.scalar_type());
    if (!type || item.tensor.layout() != at::kStrided) {
      return make_error(Errc::kInvalidArgument, "tensor \"{}\" is {}, which cannot be committed",
                        item.name, describe(item.tensor));
    }
    list.push_back({item.name, checkpoint::tensor_type_name(*type), item.tensor.sizes().vec()});
  }
  return list;
}

at::ScalarType torch_type(checkpoint::TensorType type) {
  for (const at::ScalarType candidate :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kHalf, at::kBFloat16, at::kInt, at::kFloat,
        at::kDouble, at::kLong}) {
    if (stored_type(candidate) == type) return candidate;
  }
  throw std::runtime_error("a commit has a type that LibTorch lacks");
}

checkpoint::TensorRecord record_of(const json& entry, Rank rank) {
  const auto type = checkpoint::tensor_type_from_name(entry.at(1).get<std::string>());
  if (!type) throw std::runtime_error("a commit has a type that nobody knows");
  checkpoint::TensorRecord record;
  record.name = entry.at(0).get<std::string>();
  record.rank = rank;
  record.type = *type;
  record.shape = entry.at(2).get<std::vector<std::int64_t>>();
  return record;
}

// Whether the tensor's values lie in memory one after the other.
bool is_plain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_neg() &&
         !tensor.is_conj();
}

void copy_tensors(const std::vector<StateTensor>& all, CommittedState& commit) {
  std::vector<TensorSpec> specs;
  for (const StateTensor& item : all) {
    specs.push_back({item.tensor.scalar_type(), item.tensor.sizes().vec()});
  }
  commit.made_buffers = !fit_tensors(commit.tensors, specs);
  HostCopies others;
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& from = all[i].tensor;
    const at::Tensor& to = commit.tensors[i];
    if (!is_plain(from)) {
      others.start(static_cast<std::byte*>(to.data_ptr()), from);
    } else if (from.nbytes() > 0) {
      copies.push_back({static_cast<std::byte*>(to.data_ptr()),
                        static_cast<const std::byte*>(from.data_ptr()), from.nbytes()});
    }
  }
  stream_copies(copies);  // Devices copy meanwhile.
  others.wait();
}

// A u64 with the length of the text, the JSON text, then each tensor, aligned.
Result<void> write_part(const Collected& all, Part& part) {
  auto list = list_tensors(all.per_rank);
  if (!list) return list.error();
  const std::string text = json{{"values", all.part_values}, {"tensors", std::move(*list)}}.dump();
  std::size_t bytes = aligned(sizeof(std::uint64_t) + text.size());
  for (const StateTensor& item : all.per_rank) bytes += aligned(item.tensor.nbytes());
  part.bytes.resize(bytes);
  const std::uint64_t length = text.size();
  std::memcpy(part.bytes.data(), &length, sizeof(length));
  std::memcpy(part.bytes.data() + sizeof(length), text.data(), text.size());
  std::size_t at = aligned(sizeof(length) + text.size());
  HostCopies copies;
  for (const StateTensor& item : all.per_rank) {
    copies.start(part.bytes.data() + at, item.tensor);
    at += aligned(item.tensor.nbytes());
  }
  copies.wait();
  part.there = true;
  return {};
}

struct OpenPart {
  json values;
  std::vector<checkpoint::TensorRecord> records;
  std::vector<const std::byte*> data;
};

OpenPart open_part(const Part& part, Rank rank) {
  std::uint64_t length = 0;
  std::memcpy(&length, part.bytes.data(), sizeof(length));
  const auto* text = reinterpret_cast<const char*>(part.bytes.data() + sizeof(length));
  const json header = parse_json({text, length});
  OpenPart open;
  auto values = checkpoint::decode_values(header.at("values"));
  if (!values) throw std::runtime_error(values.error().message);
  open.values = std::move(*values);
  std::size_t at = aligned(sizeof(length) + length);
  for (const json& entry : header.at("tensors")) {
    open.records.push_back(record_of(entry, rank));
    const auto& record = open.records.back();
    open.data.push_back(part.bytes.data() + at);
    at += aligned(checkpoint::tensor_bytes(record.type, record.shape).value());
  }
  return open;
}

// The commit as what a checkpoint is read from.
class CommitSource final : public TensorSource {
 public:
  struct Index {
    checkpoint::Manifest manifest;
    std::vector<const std::byte*> data;  // Of manifest.tensors.
  };

  static Index index_of(const CommittedState& commit) {
    Index index;
    checkpoint::Manifest& manifest = index.manifest;
    manifest.step = commit.step;
    manifest.world_size = commit.world_size;
    json header = parse_json(commit.header);
    auto values = checkpoint::decode_values(header.at("values"));
    if (!values) throw std::runtime_error(values.error().message);
    auto optimizers = checkpoint::decode_values(header.at("optimizers"));
    if (!optimizers) throw std::runtime_error(optimizers.error().message);
    std::size_t next = 0;
    for (const json& entry : header.at("tensors")) {
      manifest.tensors.push_back(record_of(entry, checkpoint::kReplicated));
      index.data.push_back(static_cast<const std::byte*>(commit.tensors.at(next++).data_ptr()));
    }
    manifest.state = {{"values", std::move(*values)},
                      {"optimizers", std::move(*optimizers)},
                      {"comm_hooks", std::move(header["comm_hooks"])}};
    manifest.rank_state.assign(static_cast<std::size_t>(commit.world_size), json::object());
    for (const auto& [rank, part] : commit.parts) {
      if (!part.there) continue;
      OpenPart open = open_part(part, rank);
      manifest.rank_state.at(static_cast<std::size_t>(rank)) = {{"values", std::move(open.values)}};
      std::move(open.records.begin(), open.records.end(), std::back_inserter(manifest.tensors));
      index.data.insert(index.data.end(), open.data.begin(), open.data.end());
    }
    return index;
  }

  explicit CommitSource(const Index& index) : TensorSource(index.manifest), index_(index) {}

  // A copy: what gets it may keep it and change it.
  Result<at::Tensor> read(const checkpoint::TensorRecord& record) override {
    const auto at = static_cast<std::size_t>(&record - index_.manifest.tensors.data());
    at::Tensor tensor = at::empty(record.shape, at::TensorOptions().dtype(torch_type(record.type)));
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), index_.data.at(at), tensor.nbytes());
    return tensor;
  }

 private:
  const Index& index_;
};

}  // namespace

void CommittedState::expect_parts(const std::vector<Rank>& kept) {
  std::erase_if(parts, [&](const auto& item) {
    return std::find(kept.begin(), kept.end(), item.first) == kept.end();
  });
  for (auto& [rank, part] : parts) part.there = false;
}

bool CommittedState::has_part(Rank rank) const {
  const auto found = parts.find(rank);
  return found != parts.end() && found->second.there;
}

void make_tensors(CommittedState& commit) {
  const json header = parse_json(commit.header);
  const json& list = header.at("tensors");
  std::vector<TensorSpec> specs;
  for (const json& entry : list) {
    auto record = record_of(entry, checkpoint::kReplicated);
    specs.push_back({torch_type(record.type), std::move(record.shape)});
  }
  fit_tensors(commit.tensors, specs);
}

Result<void> capture(const RegisteredState& state, Rank rank, CommittedState& commit) {
  try {
    const at::NoGradGuard no_grad;
    auto all = collect(state);
    if (!all) return all.error();
    auto list = list_tensors(all->replicated);
    if (!list) return list.error();
    all->header["tensors"] = std::move(*list);
    commit.header = all->header.dump();
    commit.buffers = all->buffers;
    copy_tensors(all->replicated, commit);
    return write_part(*all, commit.parts[rank]);
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "collecting the state failed: {}", error.what());
  }
}

std::vector<std::string> hook_names(const CommittedState& commit) {
  std::vector<std::string> names;
  const json header = parse_json(commit.header);
  for (const auto& item : header.at("comm_hooks").items()) names.push_back(item.key());
  return names;
}

namespace {

Result<void> put_back_all(const CommittedState& commit, const RegisteredState& state, Rank rank,
                          int world_size) {
  try {
    const CommitSource::Index index = CommitSource::index_of(commit);
    CommitSource source(index);
    const auto staged = stage_state(state, rank, world_size, source);
    if (!staged) return staged.error();
    if (auto made = staged->make_risky(); !made) {
      staged->undo();
      return made;
    }
    staged->commit();
    return {};
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "reading the commit failed: {}", error.what());
  }
}

}  // namespace

Result<void> put_back(const CommittedState& commit, RegisteredState& state, Rank rank,
                      int world_size) {
  const std::vector<std::string> known = hook_names(commit);
  std::vector<RegisteredState::Hook> all = state.hooks;
  std::erase_if(state.hooks, [&](const auto& item) {
    return std::find(known.begin(), known.end(), item.name) == known.end();
  });
  auto result = put_back_all(commit, state, rank, world_size);
  state.hooks = std::move(all);
  return result;
}

Result<void> put_back_hook(const CommittedState& commit, const std::string& name, CommHook& hook,
                           Rank rank, int world_size) {
  const std::vector<std::string> known = hook_names(commit);
  if (std::find(known.begin(), known.end(), name) == known.end()) return {};
  RegisteredState only;
  only.add_comm_hook(name, hook);
  return put_back_all(commit, only, rank, world_size);
}

}  // namespace ddp::elastic
