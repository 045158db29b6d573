#include "worker/ddp/state/state_dict.h"

#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/value_moves.h"

namespace ddp {
namespace {

using checkpoint::TensorType;

struct TypePair {
  at::ScalarType torch;
  TensorType stored;
};

constexpr TypePair kTypes[] = {{at::kBool, TensorType::kBool},  {at::kByte, TensorType::kU8},
                               {at::kChar, TensorType::kI8},    {at::kShort, TensorType::kI16},
                               {at::kHalf, TensorType::kF16},   {at::kBFloat16, TensorType::kBF16},
                               {at::kInt, TensorType::kI32},    {at::kFloat, TensorType::kF32},
                               {at::kDouble, TensorType::kF64}, {at::kLong, TensorType::kI64}};

std::optional<at::ScalarType> torch_type(TensorType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.stored == type) return pair.torch;
  }
  return std::nullopt;
}

std::string describe_record(const checkpoint::TensorRecord& record) {
  return fmt::format("{} [{}]", checkpoint::tensor_type_name(record.type),
                     fmt::join(record.shape, ", "));
}

}  // namespace

std::optional<TensorType> stored_type(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.stored;
  }
  return std::nullopt;
}

std::vector<StateTensor> module_tensors(const std::string& prefix, const ModuleState& module) {
  std::vector<StateTensor> tensors;
  for (const auto* list : {&module.parameters, &module.buffers}) {
    for (const NamedTensor& item : *list) {
      tensors.push_back({prefix + item.name, item.tensor, item.parts});
      for (const std::string& name : item.shared_as)
        tensors.push_back({prefix + name, item.tensor, item.parts});
    }
  }
  return tensors;
}

Result<checkpoint::TensorView> view_of(const StateTensor& state, std::vector<at::Tensor>& keep) {
  const auto type = stored_type(state.tensor.scalar_type());
  if (!type || state.tensor.layout() != at::kStrided) {
    return make_error(Errc::kInvalidArgument,
                      "tensor \"{}\" is {}, which a checkpoint cannot hold; convert it or keep it "
                      "out of the module's buffers",
                      state.name, describe(state.tensor));
  }
  const at::NoGradGuard no_grad;
  // Neither copies a tensor that is as it should be already.
  keep.push_back(state.tensor.detach().cpu().contiguous());
  const at::Tensor& plain = keep.back();
  return checkpoint::TensorView{
      state.name, *type, plain.sizes().vec(),
      std::span(static_cast<const std::byte*>(plain.data_ptr()), plain.nbytes())};
}

TensorSource::TensorSource(const checkpoint::Manifest& manifest) : manifest_(manifest) {
  for (const checkpoint::TensorRecord& record : manifest_.tensors) {
    index_[{record.rank, record.name}] = &record;
  }
}

const checkpoint::TensorRecord* TensorSource::find(const std::string& name, Rank rank) const {
  const auto found = index_.find({rank, name});
  return found == index_.end() ? nullptr : found->second;
}

std::vector<std::string> TensorSource::names_below(const std::string& prefix) const {
  std::vector<std::string> names;
  for (auto it = index_.lower_bound({checkpoint::kReplicated, prefix});
       it != index_.end() && it->first.first == checkpoint::kReplicated &&
       it->first.second.starts_with(prefix);
       ++it) {
    names.push_back(it->first.second);
  }
  return names;
}

FileTensorSource::FileTensorSource(checkpoint::FileSystem& files, const checkpoint::Entry& entry,
                                   const checkpoint::Manifest& manifest)
    : TensorSource(manifest), reader_(files, entry.path, manifest) {}

Result<at::Tensor> FileTensorSource::view(const checkpoint::TensorRecord& record) {
  const auto type = torch_type(record.type);
  if (!type) {
    return make_error(Errc::kMismatch, "tensor \"{}\" is {}, which LibTorch lacks", record.name,
                      describe_record(record));
  }
  auto mapped = reader_.tensor(record);
  if (!mapped) return mapped.error();
  void* const data = const_cast<std::byte*>(mapped->bytes.data());
  return at::from_blob(
      data, record.shape, [file = std::move(mapped->file)](void*) {},
      at::TensorOptions().dtype(*type));
}

Result<at::Tensor> FileTensorSource::read(const checkpoint::TensorRecord& record) {
  auto mapped = view(record);
  if (!mapped) return mapped;
  return mapped->clone();
}

namespace {

// Of a checkpoint's tensor and the model's of that name: empty, or what is different.
std::string difference(const StateTensor& state, const checkpoint::TensorRecord* record) {
  if (record == nullptr) {
    return fmt::format("the checkpoint has no tensor \"{}\": is it one of another model?",
                       state.name);
  }
  if (stored_type(state.tensor.scalar_type()) == record->type &&
      state.tensor.sizes().vec() == record->shape) {
    return {};
  }
  return fmt::format("tensor \"{}\" is {} in the checkpoint and {} in the model", state.name,
                     describe_record(*record), describe(state.tensor));
}

bool is_wanted(NameChoice& choice, std::string_view name) {
  return choice.covers(name.substr(kModulePrefix.size()));
}

}  // namespace

Result<Commit> stage_module(const std::string& prefix, const ModuleState& module,
                            TensorSource& source, bool is_strict, NameChoice& choice,
                            std::vector<std::string>& notes) {
  auto moves = std::make_shared<std::vector<ValueMove>>();
  std::set<std::string> expected;
  for (const StateTensor& state : module_tensors(prefix, module)) {
    expected.insert(state.name);
    if (!is_wanted(choice, state.name)) continue;
    const checkpoint::TensorRecord* record = source.find(state.name, checkpoint::kReplicated);
    if (std::string other = difference(state, record); !other.empty()) {
      if (is_strict) return Error{Errc::kMismatch, std::move(other)};
      notes.push_back(other + "; it stays as it is");
      continue;
    }
    auto tensor = source.view(*record);
    if (!tensor) return tensor.error();
    if (state.parts) {
      moves->push_back({state.parts->own, own_part_of(*tensor, *state.parts)});
    } else {
      moves->push_back({state.tensor, std::move(*tensor)});
    }
  }
  for (const std::string& name : source.names_below(prefix)) {
    if (expected.contains(name) || !is_wanted(choice, name)) continue;
    std::string other = fmt::format("the model has no tensor \"{}\" of the checkpoint", name);
    if (is_strict) return Error{Errc::kMismatch, std::move(other)};
    notes.push_back(std::move(other));
  }
  return Commit([moves] { move_values(*moves); });
}

}  // namespace ddp
