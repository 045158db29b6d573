#include "worker/ddp/state/generator_state.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include "worker/ddp/state/registered_state.h"

namespace ddp {
namespace {

// In the order in which the modules' tensors are on them.
std::vector<at::Device> devices_of(const RegisteredState& state) {
  std::vector<at::Device> devices;
  for (const auto& item : state.modules) {
    for (const at::Tensor& tensor : item.state().tensors()) {
      const at::Device device = tensor.device();
      if (device.is_cpu() || device.is_meta()) continue;
      if (std::find(devices.begin(), devices.end(), device) == devices.end())
        devices.push_back(device);
    }
  }
  return devices;
}

}  // namespace

std::vector<DefaultGenerator> generators_of(const RegisteredState& state, const std::string& name) {
  std::vector<DefaultGenerator> all = {{name, at::detail::getDefaultCPUGenerator()}};
  std::map<std::string, int> numbers;
  for (const at::Device& device : devices_of(state)) {
    const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    try {
      all.push_back({fmt::format("{}/{}{}", name, kind, numbers[kind]++),
                     at::globalContext().defaultGenerator(device), true});
    } catch (const c10::Error&) {
      // Such devices have no generator, so nobody draws from it.
    }
  }
  return all;
}

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

at::Tensor generator_state() { return generator_state(at::detail::getDefaultCPUGenerator()); }

void set_generator_state(const at::Tensor& state) {
  set_generator_state(at::detail::getDefaultCPUGenerator(), state);
}

}  // namespace ddp
