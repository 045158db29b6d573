#pragma once

#include <filesystem>
#include <string>

#include <stdlib.h>

namespace ddp::test {

// The path of a program of the build.
inline std::string bin(const std::string& name) {
  const char* const folder = ::getenv("DDP_BIN_DIR");  // NOLINT(concurrency-mt-unsafe)
  if (folder != nullptr) return std::string(folder) + "/" + name;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin" / name;
}

}  // namespace ddp::test
