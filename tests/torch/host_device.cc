#include "tests/torch/host_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#if __has_include(<ATen/detail/HPUHooksInterface.h>)
#include <ATen/detail/HPUHooksInterface.h>
#endif

#include "common/base/check.h"

// A kind for which LibTorch has no kernels of its own, so that ours are asked: XPU has some in 2.x,
// and in 1.13 a parameter cannot be moved to HPU. A macro, since LibTorch's registrations are.
#if TORCH_VERSION_MAJOR < 2
#define DDP_HOST_KIND XPU
#else
#define DDP_HOST_KIND HPU
#endif

namespace ddp::test {
namespace {

constexpr c10::DeviceType kKind = c10::DeviceType::DDP_HOST_KIND;
constexpr std::size_t kAlignment = 64;

thread_local c10::DeviceIndex current = 0;

void copy_queued(const c10::Device& device);
std::atomic<int> waits = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kKind; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kKind, current}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  // What was asked for is done already, so events are over as soon as they are recorded.
  void record(void** /*event*/, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    ++waits;
    copy_queued(stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kHostDevices; }
};

#if __has_include(<ATen/detail/HPUHooksInterface.h>)
// Autograd of newer LibTorch asks for the machine's one kind of accelerator. LibTorch finds the
// class by its name.
struct HPUHooks final : at::HPUHooksInterface {
  explicit HPUHooks(at::HPUHooksArgs /*unused*/) {}
  void init() const override {}
#if TORCH_VERSION_MINOR >= 7  // 2.7 moved these two into the interface
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
#endif
  bool hasHPU() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
};
using at::HPUHooksRegistry;
using at::RegistererHPUHooksRegistry;
REGISTER_HPU_HOOKS(HPUHooks);
#endif

c10::DataPtr allocate_bytes(std::size_t bytes) {
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = whole == 0 ? nullptr : std::aligned_alloc(kAlignment, whole);
  if (whole != 0 && memory == nullptr) throw std::bad_alloc();
  return {memory, memory, &std::free, c10::Device(kKind, current)};
}

// 2.x's allocate is not const, and its allocators also copy.
template <typename Allocator, typename Allocate = decltype(&Allocator::allocate)>
struct HostMemory final : Allocator {
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_bytes(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
};
template <typename Allocator>
struct HostMemory<Allocator, c10::DataPtr (Allocator::*)(std::size_t) const> final : Allocator {
  c10::DataPtr allocate(std::size_t bytes) const override { return allocate_bytes(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
};

HostMemory<c10::Allocator> host_memory;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::DDP_HOST_KIND);

at::Tensor empty(at::IntArrayRef sizes, c10::optional<at::ScalarType> type,
                 c10::optional<at::Layout> /*layout*/, c10::optional<at::Device> device,
                 c10::optional<bool> /*pinned*/, c10::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &host_memory, kKeys, type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         c10::optional<at::ScalarType> type, c10::optional<at::Layout> /*layout*/,
                         c10::optional<at::Device> device, c10::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &host_memory, kKeys,
                                           type.value_or(at::kFloat));
}

// The same memory as a CPU tensor.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

// Copies to the host that nobody has waited for. What the device does next comes after them.
struct Queued {
  at::Tensor from;  // Its values when the copy was asked for.
  at::Tensor to;
  c10::Device device;
};
std::mutex queue_mutex;
std::vector<Queued> queue;

void copy_queued(const c10::Device& device) {
  const std::lock_guard lock(queue_mutex);
  const auto first = std::stable_partition(
      queue.begin(), queue.end(), [&](const Queued& copy) { return copy.device != device; });
  std::for_each(first, queue.end(), [](const Queued& copy) { copy.to.copy_(copy.from); });
  queue.erase(first, queue.end());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (non_blocking && to.device().is_cpu()) {
    const std::lock_guard lock(queue_mutex);
    queue.push_back({as_cpu(from).clone(), to, from.device()});
    return to;
  }
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// It changes the running statistics but does not say so, so copies of them would not do.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const c10::optional<at::Tensor>& weight,
    const c10::optional<at::Tensor>& bias, const c10::optional<at::Tensor>& mean,
    const c10::optional<at::Tensor>& variance, bool training, double momentum, double epsilon) {
  const auto on_cpu = [](const c10::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? c10::make_optional(as_cpu(*tensor)) : tensor;
  };
  const auto [output, saved_mean, saved_inverse] =
      at::native_batch_norm(as_cpu(input), on_cpu(weight), on_cpu(bias), on_cpu(mean),
                            on_cpu(variance), training, momentum, epsilon);
  const c10::Device device = input.device();
  return {output.to(device), saved_mean.to(device), saved_inverse.to(device)};
}

void compute_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

C10_REGISTER_GUARD_IMPL(DDP_HOST_KIND, Guard);

TORCH_LIBRARY_IMPL(_, DDP_HOST_KIND, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, DDP_HOST_KIND, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("native_batch_norm", TORCH_FN(batch_norm));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
}

}  // namespace

c10::Device host_device(int number) {
  DDP_CHECK(number >= 0 && number < kHostDevices, "host device {}", number);
  return {kKind, static_cast<c10::DeviceIndex>(number)};
}

int host_device_waits() { return waits; }

}  // namespace ddp::test
