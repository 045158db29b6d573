#include "worker/runtime/own_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include <dlfcn.h>

#include "common/process/this_process.h"

namespace ddp::runtime {
namespace {

// The program or library that contains this function.
std::string own_object() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_object), &info) == 0) return {};
  return info.dli_fname;
}

}  // namespace

std::string own_program(const std::string& name, const char* variable) {
  const char* const told = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  if (told != nullptr && *told != '\0') return told;
  std::error_code ignored;
  std::vector<std::filesystem::path> folders = {
      std::filesystem::path(own_executable()).parent_path()};
  const auto object = std::filesystem::absolute(own_object(), ignored).parent_path();
  folders.push_back(object);
  folders.push_back(object.parent_path() / "bin");
  for (const std::filesystem::path& folder : folders) {
    const std::string path = folder / name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return name;
}

}  // namespace ddp::runtime
