#include "worker/checkpoint/tool/output_file.h"

#include <unistd.h>

#include <fmt/format.h>

namespace ddp::checkpoint {

Result<void> make_file(FileSystem& files, const std::string& path,
                       const std::function<Result<void>(const std::string& temporary)>& fill) {
  if (files.open_file(path) || files.list(path)) {
    return make_error(Errc::kExists, "{} already exists; remove it, or name another file", path);
  }
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  if (auto filled = fill(temporary); !filled) {
    if (filled.error().code != Errc::kExists) (void)files.remove_file(temporary);
    return filled;
  }
  if (auto renamed = files.rename(temporary, path); !renamed) {
    (void)files.remove_file(temporary);
    return renamed;
  }
  return files.sync_directory(parent_path(path));
}

}  // namespace ddp::checkpoint
