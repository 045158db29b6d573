#include "worker/python/native/cuda_streams.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

namespace ddp::python {
namespace {

// PyTorch keeps its streams until the process ends, and an external one has its handle as number.
class Handles {
 public:
  cuda::Stream of(const c10::Stream& stream) {
    const std::pair key{stream.device_index(), stream.id()};
    {
      const std::lock_guard lock(mutex_);
      const auto known = handles_.find(key);
      if (known != handles_.end()) return known->second;
    }
    const cuda::Stream handle = ask(stream);
    const std::lock_guard lock(mutex_);
    return handles_.emplace(key, handle).first->second;
  }

 private:
  static cuda::Stream ask(const c10::Stream& stream) {
    const py::gil_scoped_acquire gil;
    const py::object in_python = py::module_::import("torch").attr("cuda").attr("Stream")(
        py::arg("stream_id") = stream.id(), py::arg("device_index") = stream.device_index(),
        py::arg("device_type") = static_cast<int>(stream.device_type()));
    return reinterpret_cast<cuda::Stream>(in_python.attr("cuda_stream").cast<std::uintptr_t>());
  }

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, cuda::Stream> handles_;
};

}  // namespace

cuda::Stream handle_of(const c10::Stream& stream) {
  // Never destroyed: a thread may ask while static objects end.
  static auto* const handles = new Handles;
  return handles->of(stream);
}

c10::Stream external_stream(cuda::Stream handle, c10::Device device) {
  const py::gil_scoped_acquire gil;
  const py::object in_python = py::module_::import("torch").attr("cuda").attr("ExternalStream")(
      reinterpret_cast<std::uintptr_t>(handle), py::arg("device") = py::str(device.str()));
  return c10::Stream(c10::Stream::UNSAFE, device,
                     in_python.attr("stream_id").cast<c10::StreamId>());
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace ddp::python
