#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>  // First: it includes Python.h.

#include "worker/python/native/backend.h"
#include "worker/python/native/registered_allocator.h"

// The module ddp_run._native, whose functions ddp_run/_native.pyi describes.
PYBIND11_MODULE(_native, module) {
  using ddp::python::BackendOptions;
  using ddp::python::DdpBackend;

  ddp::python::install_registered_allocator();

  module.def(
      "make_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout, const std::string& group_name,
         const std::vector<int>& global_ranks) -> c10::intrusive_ptr<c10d::Backend> {
        return DdpBackend::make(store, rank, size, {timeout, group_name, global_ranks});
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("group_name"),
      py::arg("global_ranks"), py::call_guard<py::gil_scoped_release>());
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
  module.def("is_registered", &ddp::python::is_registered, py::arg("tensor"));
  module.def("shut_down_all", &ddp::python::shut_down_all,
             py::call_guard<py::gil_scoped_release>());
}
