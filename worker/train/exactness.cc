#include "worker/train/exactness.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>

namespace ddp::train {

void prepare_exact_devices() {
  // Without it cuBLAS may add up in another order each time, and LibTorch refuses to use it.
  constexpr int kKeep = 0;  // What the user has chosen.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", kKeep);
}

void compute_exactly() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);  // It chooses by measured time.
}

void seed_devices(const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    if (device.is_cpu()) continue;
    const auto seed =
        at::randint(std::numeric_limits<std::int64_t>::max(), {1}, at::TensorOptions(at::kLong))
            .item<std::int64_t>();
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(static_cast<std::uint64_t>(seed));
  }
}

}  // namespace ddp::train
