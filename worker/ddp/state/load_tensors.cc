#include "worker/ddp/state/load_tensors.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/file_system.h"
#include "worker/ddp/state/name_choice.h"
#include "worker/ddp/state/state_dict.h"

namespace ddp {
namespace {

Result<void> read_all(FileTensorSource& source, const LoadTensorsOptions& options,
                      LoadedTensors& loaded) {
  NameChoice choice(options.names);
  for (const std::string& full : source.names_below(std::string(kModulePrefix))) {
    const std::string name = full.substr(kModulePrefix.size());
    if (!choice.covers(name)) continue;
    auto tensor = source.view(*source.find(full, checkpoint::kReplicated));
    if (!tensor) return tensor.error();
    const at::Device device = options.map_location ? options.map_location(name) : at::kCPU;
    loaded.tensors.emplace(name, tensor->to(device, tensor->scalar_type(), /*non_blocking=*/false,
                                            /*copy=*/true));
  }
  if (const std::string idle = choice.idle(); !idle.empty()) {
    return make_error(Errc::kMismatch, "{}: no tensor of a module is called like \"{}\"",
                      loaded.path, idle);
  }
  return {};
}

Error nothing_found(const std::string& directory, const LoadTensorsOptions& options,
                    const std::vector<std::string>& skipped) {
  const std::string wanted = options.step < 0
                                 ? "valid checkpoint"
                                 : fmt::format("valid checkpoint of step {}", options.step);
  return make_error(Errc::kNotFound, "{}: there is no {}{}{}", directory, wanted,
                    skipped.empty() ? "" : "; passed over: ", fmt::join(skipped, "; "));
}

}  // namespace

Result<LoadedTensors> load_tensors(const std::string& directory,
                                   const LoadTensorsOptions& options) {
  checkpoint::FileSystem& files = checkpoint::posix_file_system();
  checkpoint::Directory folder(files, directory);
  checkpoint::ValidSearch search(folder);
  for (;;) {
    auto found = search.next();
    if (!found) return found.error();
    if (!found->has_value()) return nothing_found(directory, options, search.skipped());
    const auto& [entry, manifest] = **found;
    if (options.step >= 0 && entry.step != options.step) continue;
    LoadedTensors loaded;
    loaded.step = entry.step;
    loaded.path = entry.path;
    FileTensorSource source(files, entry, manifest);
    if (const auto read = read_all(source, options, loaded); !read) {
      if (!checkpoint::is_damage(read.error())) return read.error();
      search.reject(entry, read.error().message);
      continue;
    }
    loaded.skipped = search.skipped();
    return loaded;
  }
}

}  // namespace ddp
