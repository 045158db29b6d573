#include "worker/train/cpu_threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include <dlfcn.h>

#include "common/process/this_process.h"

namespace ddp::train {

int usable_cores() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int default_threads(int local_world_size) {
  // This program never changes its environment, so reading it is safe.
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {  // NOLINT(concurrency-mt-unsafe)
    const std::string_view view(text);
    int threads = 0;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), threads);
    if (error == std::errc() && end == view.data() + view.size() && threads > 0) return threads;
  }
  return std::max(1, usable_cores() / std::max(1, local_world_size));
}

std::string loaded_blas() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::string found;
  while (std::getline(maps, line)) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash);
    const std::string_view file = std::string_view(path).substr(path.rfind('/') + 1);
    if (file.starts_with("libopenblas") || file.starts_with("libmkl_rt")) return path;
    if (file.starts_with("libblas")) found = path;
  }
  return found;
}

void set_blas_threads(int threads) {
  using SetThreads = void (*)(int);
  const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace ddp::train
