#include "worker/ddp/tensors/host_copies.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp {

HostCopies::~HostCopies() {
  try {
    wait();
  } catch (const std::exception&) {
    // The caller already throws the first cause.
  }
}

void HostCopies::start(std::byte* to, const at::Tensor& from) {
  if (from.numel() == 0) return;
  const c10::Device device = from.device();
  if (device.is_cpu() && from.is_contiguous() && !from.is_neg()) {
    std::memcpy(to, from.data_ptr(), from.nbytes());
    return;
  }
  const at::NoGradGuard no_grad;
  // LibTorch would negate on the host, at once.
  const at::Tensor values = from.detach().resolve_neg();
  if (!device.is_cpu() && std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
  }
  at::from_blob(to, from.sizes(), at::TensorOptions(from.scalar_type()))
      .copy_(values, /*non_blocking=*/true);
}

void HostCopies::wait() {
  for (const c10::Device& device : std::exchange(devices_, {})) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace ddp
