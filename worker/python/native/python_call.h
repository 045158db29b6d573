#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/csrc/utils/pybind.h>

namespace ddp::python {

// A Python object that C++ keeps: threads without the GIL may copy and destroy it.
using KeptObject = std::shared_ptr<const py::object>;

inline KeptObject keep(py::object object) {
  return {new py::object(std::move(object)), [](const py::object* kept) {
            const py::gil_scoped_acquire gil;
            delete kept;
          }};
}

// What a call of Python has raised, without its type and traceback.
struct PythonError : std::runtime_error {
  PythonError(const std::string& text, bool mistake)
      : std::runtime_error(text), is_value_error(mistake) {}
  bool is_value_error;
};

// Calls the function and returns what `take` makes of its result. Takes the GIL. Throws
// PythonError.
template <typename Take, typename... Arguments>
auto call(const KeptObject& function, const Take& take, Arguments&&... arguments) {
  const py::gil_scoped_acquire gil;
  try {
    return take((*function)(std::forward<Arguments>(arguments)...));
  } catch (py::error_already_set& error) {
    std::string text = py::str(error.value());
    if (text.empty()) text = py::str(error.type().attr("__name__"));
    throw PythonError(text, error.matches(PyExc_ValueError));
  }
}

}  // namespace ddp::python
