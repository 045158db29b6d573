#include "launcher/check/nvml_probe.h"

#include <optional>

#include <fmt/format.h>

#include "common/base/dynamic_library.h"
#include "launcher/machine/machine.h"

namespace ddp::check {
namespace {

// The part of nvml.h that is used here. NVML keeps its binary interface by numbered names.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;
constexpr unsigned kNameBytes = 96;

struct Memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

class Nvml {
 public:
  // The reason if it cannot be used.
  static Result<Nvml> open() {
    const auto library = DynamicLibrary::open({"libnvidia-ml.so.1"});
    if (!library) return library.error();
    Nvml nvml;
    Symbols symbols(*library);
    symbols.need(nvml.init_, "nvmlInit_v2");
    symbols.need(nvml.shutdown_, "nvmlShutdown");
    symbols.need(nvml.error_string_, "nvmlErrorString");
    symbols.need(nvml.count_, "nvmlDeviceGetCount_v2");
    symbols.need(nvml.handle_, "nvmlDeviceGetHandleByIndex_v2");
    symbols.need(nvml.name_, "nvmlDeviceGetName");
    symbols.need(nvml.memory_, "nvmlDeviceGetMemoryInfo");
    symbols.want(nvml.errors_, "nvmlDeviceGetTotalEccErrors");
    symbols.want(nvml.remapped_, "nvmlDeviceGetRemappedRows");
    if (!symbols.missing().empty()) {
      return make_error(Errc::kNotFound, "{} has no {}", library->name(), symbols.missing());
    }
    if (const int code = nvml.init_(); code != kSuccess) {
      return make_error(Errc::kIo, "nvmlInit: {}", nvml.error_string_(code));
    }
    return nvml;
  }

  std::vector<GpuFacts> gpus() const {
    unsigned count = 0;
    std::vector<GpuFacts> gpus;
    if (count_(&count) != kSuccess) return gpus;
    for (unsigned index = 0; index < count; ++index) gpus.push_back(gpu(index));
    return gpus;
  }

  void shutdown() const { shutdown_(); }

 private:
  // A GPU without these counters (a consumer's) has none that are wrong.
  GpuFacts gpu(unsigned index) const {
    GpuFacts facts;
    facts.index = static_cast<int>(index);
    Device device = nullptr;
    char name[kNameBytes] = {};
    Memory memory;
    int code = handle_(index, &device);
    if (code == kSuccess) code = name_(device, name, kNameBytes);
    if (code == kSuccess) code = memory_(device, &memory);
    if (code != kSuccess) {
      facts.error = error_string_(code);
      return facts;
    }
    facts.name = name;
    facts.used_bytes = static_cast<std::int64_t>(memory.used);
    facts.total_bytes = static_cast<std::int64_t>(memory.total);
    unsigned long long errors = 0;
    if (errors_ != nullptr && errors_(device, kUncorrected, kVolatile, &errors) == kSuccess)
      facts.uncorrected_errors = static_cast<std::int64_t>(errors);
    unsigned corrected = 0, uncorrected = 0, pending = 0, failure = 0;
    if (remapped_ != nullptr &&
        remapped_(device, &corrected, &uncorrected, &pending, &failure) == kSuccess) {
      facts.remapping_pending = pending != 0;
      facts.remapping_failed = failure != 0;
    }
    return facts;
  }

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*errors_)(Device, int, int, unsigned long long*) = nullptr;
  int (*remapped_)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
};

}  // namespace

void probe_gpus(LocalFacts& facts, const std::string& root) {
  // CUDA_VISIBLE_DEVICES hides devices from CUDA, not from NVML.
  facts.gpu_files = machine::cuda_devices([](const char*) { return nullptr; }, root);
  if (facts.gpu_files == 0) return;
  const auto nvml = Nvml::open();
  if (!nvml) {
    facts.nvml_error = nvml.error().message;
    return;
  }
  facts.gpus = nvml->gpus();
  nvml->shutdown();
}

}  // namespace ddp::check
