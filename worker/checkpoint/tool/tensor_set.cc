#include "worker/checkpoint/tool/tensor_set.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/checkpoint/target.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kModulePrefix = "module/";

std::set<std::string> module_names(const Manifest& manifest) {
  std::set<std::string> names;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!tensor.name.starts_with(kModulePrefix)) continue;
    const std::string rest = tensor.name.substr(kModulePrefix.size());
    names.insert(rest.substr(0, rest.find('/')));
  }
  return names;
}

void sort_by_name(TensorSet& set) {
  std::sort(set.tensors.begin(), set.tensors.end(),
            [](const SetTensor& a, const SetTensor& b) { return a.name < b.name; });
}

}  // namespace

Result<TensorSet> open_module(const std::string& path, const std::string& module,
                              std::ostream& err) {
  auto target = find_target(path);
  if (!target) return target.error();
  auto found = newest_valid(*target, err);
  if (!found) return found.error();
  TensorSet set{found->entry.path, {}};
  const std::set<std::string> names = module_names(found->manifest);
  if (module.empty() && names.size() != 1) {
    return make_error(Errc::kInvalidArgument, "{} has {} modules ({}); choose one with --module",
                      set.path, names.size(), fmt::join(names, ", "));
  }
  if (!module.empty() && !names.contains(module)) {
    return make_error(Errc::kInvalidArgument, "{} has no module \"{}\"; it has: {}", set.path,
                      module, fmt::join(names, ", "));
  }
  const std::string prefix =
      fmt::format("{}{}/", kModulePrefix, module.empty() ? *names.begin() : module);
  Reader reader(posix_file_system(), set.path, found->manifest);
  for (const TensorRecord& record : found->manifest.tensors) {
    if (record.rank != kReplicated || !record.name.starts_with(prefix)) continue;
    auto data = reader.tensor(record);
    if (!data) return data.error();
    set.tensors.push_back(
        {record.name.substr(prefix.size()), record.type, record.shape, std::move(*data)});
  }
  sort_by_name(set);
  return set;
}

Result<TensorSet> open_safetensors(const std::string& path) {
  auto file = posix_file_system().map_file(path);
  if (!file) return file.error();
  auto header = read_safetensors_header(**file, path);
  if (!header) {
    return make_error(Errc::kCorrupt, "{}; it is not a safetensors file", header.error().message);
  }
  // Data that the disk cannot read must be an error now, not a signal later.
  if (auto read = (*file)->fetch(0, (*file)->bytes().size()); !read) return read.error();
  TensorSet set{path, {}};
  for (TensorEntry& entry : header->tensors) {
    const auto bytes = (*file)->bytes().subspan(entry.begin, entry.end - entry.begin);
    set.tensors.push_back(
        {std::move(entry.name), entry.type, std::move(entry.shape), MappedTensor{bytes, *file}});
  }
  sort_by_name(set);
  return set;
}

}  // namespace ddp::checkpoint
