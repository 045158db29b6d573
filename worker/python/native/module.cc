#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "worker/python/native/backend.h"
#include "worker/python/native/bindings.h"
#include "worker/python/native/registered_allocator.h"

namespace ddp::python {

void bind_backend(py::module_& module) {
  module.def(
      "make_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout, const std::string& group_name,
         const std::vector<int>& global_ranks,
         bool waits_for_reconfigure) -> c10::intrusive_ptr<c10d::Backend> {
        return DdpBackend::make(store, rank, size,
                                {timeout, group_name, global_ranks, waits_for_reconfigure});
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("group_name"),
      py::arg("global_ranks"), py::arg("waits_for_reconfigure"),
      py::call_guard<py::gil_scoped_release>());
  const auto ours = [](const c10::intrusive_ptr<c10d::Backend>& backend) -> DdpBackend& {
    auto* const found = dynamic_cast<DdpBackend*>(backend.get());
    TORCH_CHECK_TYPE(found != nullptr, "the group's backend is not \"ddp\"");
    return *found;
  };
  module.def(
      "abort", [ours](const c10::intrusive_ptr<c10d::Backend>& backend) { ours(backend).abort(); },
      py::arg("backend"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "nodes",
      [ours](const c10::intrusive_ptr<c10d::Backend>& backend) { return ours(backend).nodes(); },
      py::arg("backend"));
  module.def("is_registered", &is_registered, py::arg("tensor"));
  module.def("shut_down_all", &shut_down_all, py::call_guard<py::gil_scoped_release>());
}

}  // namespace ddp::python

PYBIND11_MODULE(_native, module) {
  ddp::python::install_registered_allocator();
  ddp::python::bind_backend(module);
  ddp::python::bind_worker(module);
  ddp::python::bind_state(module);
  ddp::python::bind_rounds(module);
  ddp::python::bind_checkpoints(module);
  ddp::python::bind_logical(module);
  ddp::python::bind_tensorboard(module);
}
