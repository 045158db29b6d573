#include "worker/ddp/tensors/pinned_memory.h"

#include <utility>

#include <dlfcn.h>

namespace ddp {
namespace {

using Register = int (*)(void*, std::size_t, unsigned);
using Unregister = int (*)(void*);

// The driver's library, whichever CUDA runtime LibTorch uses. Null if this process has not used a
// device yet.
template <typename Function>
Function in_driver(const char* name) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  auto* const found = reinterpret_cast<Function>(::dlsym(driver, name));
  ::dlclose(driver);  // LibTorch keeps it.
  return found;
}

}  // namespace

void PinnedMemory::pin(std::span<std::byte> memory) {
  unpin();
  constexpr unsigned kForAllDevices = 1;  // CU_MEMHOSTREGISTER_PORTABLE
  const auto pin_it = in_driver<Register>("cuMemHostRegister_v2");
  if (pin_it == nullptr || memory.empty()) return;
  if (pin_it(memory.data(), memory.size(), kForAllDevices) == 0) begin_ = memory.data();
}

void PinnedMemory::unpin() {
  void* const begin = std::exchange(begin_, nullptr);
  if (begin == nullptr) return;
  // At the end of the process CUDA may be gone, and everything is unpinned.
  if (const auto unpin_it = in_driver<Unregister>("cuMemHostUnregister")) (void)unpin_it(begin);
}

}  // namespace ddp
