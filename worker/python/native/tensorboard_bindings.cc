#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "worker/python/native/bindings.h"  // First: it includes Python.h.
#include "worker/python/native/shared_event_file.h"
#include "worker/python/native/value_or_raise.h"

namespace ddp::python {

void bind_tensorboard(py::module_& module) {
  using tensorboard::EventFile;
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  py::class_<SharedEventFile, std::shared_ptr<SharedEventFile>>(module, "EventFile")
      .def(py::init([](const std::string& folder, std::optional<std::int64_t> last_step) {
             return std::make_shared<SharedEventFile>(
                 value_or_raise(EventFile::open(folder, last_step.value_or(EventFile::kKeepAll))));
           }),
           py::arg("folder"), py::arg("last_step"), ReleaseGil())
      .def(
          "add",
          [](SharedEventFile& file, std::int64_t step,
             const std::map<std::string, double>& scalars) {
            std::vector<tensorboard::Scalar> all;
            for (const auto& [tag, value] : scalars) all.push_back({tag, value});
            value_or_raise(file.add(step, all));
          },
          py::arg("step"), py::arg("scalars"), ReleaseGil());
}

}  // namespace ddp::python
