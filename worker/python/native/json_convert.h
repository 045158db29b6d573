#pragma once

#include <nlohmann/json.hpp>
#include <torch/csrc/utils/pybind.h>

// Python's None, bool, int, float, str, list and dict as JSON values, and back. The GIL must be
// held.
namespace ddp::python {

// Throws py::type_error for other types and keys that are not strings, py::value_error for an int
// of more than 64 bits.
nlohmann::json to_json(py::handle value);
py::object to_python(const nlohmann::json& value);

}  // namespace ddp::python
