#pragma once

#include <torch/csrc/utils/pybind.h>  // First: it includes Python.h.

// The parts of the module ddp_run._native, whose functions and classes ddp_run/_native.pyi
// describes.
namespace ddp::python {

void bind_backend(py::module_& module);      // module.cc
void bind_worker(py::module_& module);       // worker_bindings.cc
void bind_state(py::module_& module);        // state_bindings.cc
void bind_rounds(py::module_& module);       // round_bindings.cc
void bind_logical(py::module_& module);      // logical_bindings.cc
void bind_checkpoints(py::module_& module);  // checkpoint_bindings.cc
void bind_tensorboard(py::module_& module);  // tensorboard_bindings.cc

}  // namespace ddp::python
