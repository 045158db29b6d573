#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <torch/csrc/utils/pybind.h>  // First: it includes Python.h.

#include "common/base/result.h"

namespace ddp::python {

// The value, or an exception for Python: ValueError for what the caller has given and what does not
// fit, RuntimeError for everything else.
template <typename T>
T value_or_raise(Result<T> result) {
  if (result) return std::move(*result);
  const std::string& text = result.error().message;
  if (result.error().code == Errc::kMismatch || result.error().code == Errc::kInvalidArgument) {
    throw py::value_error(text);
  }
  throw std::runtime_error(text);
}

inline void value_or_raise(Result<void> result) {
  if (!result) value_or_raise(Result<int>(result.error()));
}

}  // namespace ddp::python
