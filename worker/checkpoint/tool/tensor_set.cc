#include "worker/checkpoint/tool/tensor_set.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/checkpoint/name_pattern.h"
#include "worker/checkpoint/tool/target.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kModulePrefix = "module/";

Result<TensorSet> open_checkpoint(const std::string& path, std::ostream& err) {
  auto target = find_target(path);
  if (!target) return target.error();
  auto found = newest_valid(*target, err);
  if (!found) return found.error();
  TensorSet set;
  set.path = found->entry.path;
  set.is_checkpoint = true;
  set.manifest = std::move(found->manifest);
  Reader reader(posix_file_system(), set.path, set.manifest);
  for (const TensorRecord& record : set.manifest.tensors) {
    auto data = reader.tensor(record);
    if (!data) return data.error();
    set.tensors.push_back({record.name, record.rank, record.type, record.shape, std::move(*data)});
  }
  return set;
}

Result<TensorSet> open_file(const std::string& path) {
  auto file = posix_file_system().map_file(path);
  if (!file) return file.error();
  auto header = read_safetensors_header(**file, path);
  if (!header) {
    return make_error(Errc::kCorrupt, "{}; it is neither a folder nor a safetensors file",
                      header.error().message);
  }
  // Data that the disk cannot read must be an error now, not a signal later.
  if (auto read = (*file)->fetch(0, (*file)->bytes().size()); !read) return read.error();
  TensorSet set;
  set.path = path;
  for (TensorEntry& entry : header->tensors) {
    const auto bytes = (*file)->bytes().subspan(entry.begin, entry.end - entry.begin);
    set.tensors.push_back({std::move(entry.name), kReplicated, entry.type, std::move(entry.shape),
                           MappedTensor{bytes, *file}});
  }
  return set;
}

}  // namespace

std::string SetTensor::title() const {
  return rank == kReplicated ? name : fmt::format("{} of rank {}", name, rank);
}

Result<TensorSet> open_tensor_set(const std::string& path, std::ostream& err) {
  const bool is_folder = posix_file_system().list(path).has_value();
  auto set = is_folder ? open_checkpoint(path, err) : open_file(path);
  if (!set) return set;
  std::sort(set->tensors.begin(), set->tensors.end(), [](const SetTensor& a, const SetTensor& b) {
    return std::tie(a.rank, a.name) < std::tie(b.rank, b.name);
  });
  return set;
}

std::vector<std::string> module_names(const TensorSet& set) {
  std::set<std::string> names;
  for (const SetTensor& tensor : set.tensors) {
    if (!tensor.name.starts_with(kModulePrefix)) continue;
    const std::string rest = tensor.name.substr(kModulePrefix.size());
    names.insert(rest.substr(0, rest.find('/')));
  }
  return {names.begin(), names.end()};
}

Result<void> select_module(TensorSet& set, const std::string& module) {
  if (!set.is_checkpoint) return {};
  const std::vector<std::string> names = module_names(set);
  std::string chosen = module;
  if (chosen.empty()) {
    if (names.size() != 1) {
      return make_error(Errc::kInvalidArgument, "{} has {} modules ({}); choose one with --module",
                        set.path, names.size(), fmt::join(names, ", "));
    }
    chosen = names.front();
  } else if (std::find(names.begin(), names.end(), chosen) == names.end()) {
    return make_error(Errc::kInvalidArgument, "{} has no module \"{}\"; it has: {}", set.path,
                      chosen, fmt::join(names, ", "));
  }
  const std::string prefix = fmt::format("{}{}/", kModulePrefix, chosen);
  std::vector<SetTensor> kept;
  for (SetTensor& tensor : set.tensors) {
    if (tensor.rank != kReplicated || !tensor.name.starts_with(prefix)) continue;
    tensor.name.erase(0, prefix.size());
    kept.push_back(std::move(tensor));
  }
  set.tensors = std::move(kept);
  return {};
}

Result<void> select_names(TensorSet& set, const std::string& pattern) {
  std::erase_if(set.tensors, [&pattern](const SetTensor& tensor) {
    return !matches_pattern(pattern, tensor.name);
  });
  if (set.tensors.empty()) {
    return make_error(Errc::kNotFound, "{} has no tensor whose name matches --names \"{}\"",
                      set.path, pattern);
  }
  return {};
}

}  // namespace ddp::checkpoint
