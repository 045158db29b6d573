#include "launcher/machine/accelerators.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "launcher/machine/machine.h"

namespace ddp::machine {
namespace {

namespace fs = std::filesystem;

constexpr auto kAccelerators = std::to_array<Accelerator>(
    {{"gpu", "CUDA device", "/dev/nvidia*, CUDA_VISIBLE_DEVICES"},
     {"xpu", "Intel GPU", "/sys/class/drm, ZE_AFFINITY_MASK"},
     {"hpu", "Gaudi", "/sys/class/accel, /dev/hl*, HABANA_VISIBLE_MODULES"},
     {"npu", "Ascend NPU", "/dev/davinci*, ASCEND_RT_VISIBLE_DEVICES"}});

constexpr const char* kIntel = "0x8086";
constexpr const char* kHabana = "0x1da3";
// Where the GPU inside an Intel CPU is on the PCI bus.
constexpr std::string_view kIntegrated = "0000:00:02.0";

// "card0" with "card".
bool is_numbered(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return false;
  return name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

// PREFIX0, PREFIX1, ... in a folder.
std::vector<fs::path> numbered(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_numbered(entry->path().filename().string(), prefix)) found.push_back(entry->path());
  }
  return found;
}

std::vector<fs::path> of_vendor(const fs::path& folder, std::string_view prefix,
                                std::string_view vendor) {
  auto found = numbered(folder, prefix);
  std::erase_if(found, [vendor](const fs::path& device) {
    std::ifstream file(device / "device/vendor");
    std::string own;
    return !(file >> own) || own != vendor;
  });
  return found;
}

// Entries of a list as "0,1" or "0.0,1.1"; -1 if the variable does not say it.
int listed(const GetEnvironment& environment, const char* variable) {
  const char* value = environment(variable);
  if (value == nullptr || *value == '\0') return -1;
  return static_cast<int>(visible_devices(value).size());
}

struct IntelGpus {
  int cards = 0;
  int integrated = 0;
};

// A card on the bus is a device, however many tiles it has.
IntelGpus intel_gpus(const fs::path& root) {
  IntelGpus found;
  for (const fs::path& node : of_vendor(root / "sys/class/drm", "renderD", kIntel)) {
    std::error_code error;
    const bool integrated =
        fs::read_symlink(node / "device", error).filename().string() == kIntegrated;
    ++(integrated ? found.integrated : found.cards);
  }
  return found;
}

int gaudis(const fs::path& root) {
  const auto accel = of_vendor(root / "sys/class/accel", "accel", kHabana);
  return static_cast<int>(accel.empty() ? numbered(root / "dev", "hl").size() : accel.size());
}

int count_xpus(const GetEnvironment& environment, const fs::path& root, bool any) {
  if (const int masked = listed(environment, "ZE_AFFINITY_MASK"); masked >= 0) return masked;
  const IntelGpus found = intel_gpus(root);
  // As in torch.xpu, the integrated GPU counts only if there is no other.
  return found.cards > 0 || any ? found.cards : found.integrated;
}

int count_kind(std::string_view name, const GetEnvironment& environment, const std::string& root,
               bool any) {
  const fs::path top = root.empty() ? "/" : root;
  if (name == "gpu") return cuda_devices(environment, root);
  if (name == "xpu") return count_xpus(environment, top, any);
  const char* variable = name == "hpu" ? "HABANA_VISIBLE_MODULES" : "ASCEND_RT_VISIBLE_DEVICES";
  if (const int visible = listed(environment, variable); visible >= 0) return visible;
  if (name == "hpu") return gaudis(top);
  return static_cast<int>(numbered(top / "dev", "davinci").size());
}

}  // namespace

std::span<const Accelerator> accelerators() { return kAccelerators; }

const Accelerator* find_accelerator(std::string_view name) {
  const auto found = std::ranges::find(kAccelerators, name, &Accelerator::name);
  return found == kAccelerators.end() ? nullptr : &*found;
}

int count_accelerators(std::string_view name, const GetEnvironment& environment,
                       const std::string& root) {
  if (name != kAnyAccelerator) return count_kind(name, environment, root, false);
  for (const Accelerator& kind : kAccelerators) {
    if (const int count = count_kind(kind.name, environment, root, true); count > 0) return count;
  }
  return 0;
}

}  // namespace ddp::machine
